"""Shaped rewards, from which advantages are computed: as scored, plus ranks within the group, minus a penalty for length. Pure.

The scheduler refills groups whose shaped rewards are equal, and the step's metrics count them: such a group has no gradient. With
`reinforce_pp`, which compares attempts with the whole step, it has one, and refills are refused.
The scheduler knows attempts from the header of their messages (`SettledMember`), which carries everything that is read here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.spec import TaskSpec


@dataclass(frozen=True)
class Attempt:
    """The part of a scored attempt that shaping reads."""

    reward: float
    """Reward as scored."""
    sampled_tokens: int
    longest_turn_tokens: int
    """Sampled tokens of its longest turn."""
    components: Mapping[str, float]
    """Parts of the reward by name; at least those in the task's `rank_weights` that the attempt has."""


def has_equal_rewards(attempts: Sequence[Attempt], spec: TaskSpec) -> bool:
    """Whether the members of this complete group have equal shaped rewards."""
    return are_equal(shaped_rewards(attempts, spec))


def are_equal(rewards_G: Sequence[float]) -> bool:
    """Whether a group's shaped rewards are all equal. False for a single attempt, which is compared with others of its step."""
    return len(rewards_G) > 1 and min(rewards_G) == max(rewards_G)


def shaped_rewards(attempts: Sequence[Attempt], spec: TaskSpec) -> list[float]:
    """Shaped rewards of a complete group's members, for their advantages.

    Raises: ZeroDivisionError for rank weights in a group of one, which a task's validation excludes.
    """
    rewards = [attempt.reward for attempt in attempts]
    for name, weight in spec.environment.rank_weights.items():
        ranks = rank_shares([_component(attempt, name) for attempt in attempts])
        rewards = [reward + weight * rank for reward, rank in zip(rewards, ranks, strict=True)]
    if spec.overlong.rule == "penalize":
        excess = [excess_length(_length(attempt, spec), spec.length_limit, spec.overlong.buffer_tokens) for attempt in attempts]
        rewards = [reward - spec.overlong.penalty * share for reward, share in zip(rewards, excess, strict=True)]
    return rewards


def rank_shares(values: Sequence[float]) -> list[float]:
    """Rank of each value: the share of the others that are smaller, counting ties as half; 0 for the minimum, 1 for the maximum.

    Raises: ZeroDivisionError for fewer than two values.
    """
    others = len(values) - 1
    return [(sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2) / others for value in values]


def excess_length(sampled_tokens: int, limit: int, buffer_tokens: int) -> float:
    """Fraction of the length penalty: 0 up to `buffer_tokens` before the limit, then linear to 1 at the limit.

    Source: soft overlong punishment, DAPO, arXiv 2503.14476, eq. 13.
    """
    return min(1.0, max(0.0, (sampled_tokens - (limit - buffer_tokens)) / buffer_tokens))


def _component(attempt: Attempt, name: str) -> float:
    """Value of a reward component; 0 if the attempt lacks it, or it is not finite."""
    if name == "reward":
        return attempt.reward
    value = attempt.components.get(name, 0.0)
    return value if math.isfinite(value) else 0.0


def _length(attempt: Attempt, spec: TaskSpec) -> int:
    """Length of the attempt, in tokens, to compare with `spec.length_limit`."""
    return attempt.sampled_tokens if spec.overlong.per == "trajectory" else attempt.longest_turn_tokens
