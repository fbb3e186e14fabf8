"""The reward that a task's weights make of an outcome's components. Pure.

    reward = Σ weights[name] × components[name]        `reward` names what the environment gives by itself

A component that an attempt does not have counts 0: an episode that ran out of turns has only `out_of_turns`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from env_svc.contract import WrongOptions
from env_svc.options import near
from env_svc.play import Failed, Outcome, Scored, failed

OWN = "reward"
ALWAYS = (OWN, "out_of_turns", "out_of_tokens", "out_of_seconds", "tool_calls", "tool_errors")
"""What every episode may have, those with tools the last two."""


def weighted(outcome: Outcome, weights: Mapping[str, float]) -> Outcome:
    """`outcome` with the reward that the task wants, the environment's own among its components.

    Anything but a score, and a task without weights, as it is.
    """
    if not weights or not isinstance(outcome, Scored):
        return outcome
    parts = {OWN: outcome.reward} | outcome.components
    reward = math.fsum(weight * parts.get(name, 0.0) for name, weight in weights.items())
    if not math.isfinite(reward):
        return _too_large(weights)
    return Scored(reward, parts)


def check_weights(name: str, known: Sequence[str], weights: Iterable[str]) -> None:
    """Raises: WrongOptions when the environment `name` declares its components and a weight is of none of them."""
    wrong = [weight for weight in weights if known and weight not in (*known, *ALWAYS)]
    if wrong:
        raise WrongOptions(f"environment '{name}' has no reward component '{wrong[0]}'{near(wrong[0], [*known, *ALWAYS])}")


def _too_large(weights: Mapping[str, float]) -> Failed:
    return failed(f"the weighted sum of {', '.join(weights)} is not a finite number")
