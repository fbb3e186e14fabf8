"""Weighted reward of an outcome's components. Pure.

    reward = Σ weights[name] × components[name]        `reward` names the environment's own reward

A component that an attempt lacks counts 0: an episode that ran out of turns has only `out_of_turns`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from env_svc.calls import Failed, Outcome, Scored, failed, is_bounded
from env_svc.contract import MAX_NUMBER
from env_svc.errors import WrongOptions
from env_svc.options import suggestion

BASE_REWARD = "reward"
EPISODE_COMPONENTS = (BASE_REWARD, "out_of_turns", "out_of_tokens", "out_of_seconds", "tool_calls", "tool_errors")
"""Components of every environment; the last two where the episode has tools."""


def apply_weights(outcome: Outcome, weights: Mapping[str, float], name: str) -> Outcome:
    """`outcome` with the task's weighted reward, and the environment's own among its components; a failure when a value is too large."""
    if not weights or not isinstance(outcome, Scored):
        return outcome
    parts = {BASE_REWARD: outcome.reward} | outcome.components
    terms = {f"{weight:g} × '{part}'": weight * parts.get(part, 0.0) for part, weight in weights.items()}
    wrong = next((term for term, value in terms.items() if not is_bounded(value)), None)
    if wrong is not None:
        return replace(_too_large(name, wrong, terms[wrong]), worked_s=outcome.worked_s)
    reward = math.fsum(terms.values())
    if not is_bounded(reward):
        return replace(_too_large(name, f"the weighted sum of {', '.join(weights)}", reward), worked_s=outcome.worked_s)
    return replace(outcome, reward=reward, components=parts)


def check_weights(name: str, known: Sequence[str], weights: Iterable[str]) -> None:
    """Raises: WrongOptions when the environment `name` declares its components and a weight names none of them."""
    names = [*known, *EPISODE_COMPONENTS]
    if wrong := [weight for weight in weights if known and weight not in names]:
        raise WrongOptions(f"environment '{name}' has no reward component '{wrong[0]}'{suggestion(wrong[0], names)}")


def _too_large(name: str, what: str, value: float) -> Failed:
    return failed(f"environment '{name}': {what} is {value:g}, expected a finite number of at most {MAX_NUMBER:g} either way")
