"""The best version of a task: the one that `@best` names. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

LATEST_STEPS = 5
"""Steps whose rewards are compared where no version is evaluated."""


@dataclass(frozen=True)
class Judged:
    """A version, and what is known of it by an evaluation."""

    version: int
    reward: float
    lower_bound: float | None
    """Of the mean's 95 % interval; None where too few prompts were scored."""


def best_version(
    judged: Sequence[Judged], rewards: Sequence[tuple[int, float]], stored: Collection[int], *, by_mean: bool = False
) -> int | None:
    """The best of the `stored` versions; the earlier of equals. None where none is stored, or nothing is known of those that are.

    judged: evaluations by the protocol that decides. by_mean: whether it decides by the mean, and not by the lower bound.
    rewards: (version, mean reward of the step that made it), by version; the last 5 count where no stored version is evaluated.
    """

    def worth(one: Judged) -> tuple[float, float, int]:
        bound = float("-inf") if one.lower_bound is None else one.lower_bound
        return (one.reward if by_mean else bound, one.reward, -one.version)

    if known := [one for one in judged if one.version in stored]:
        return max(known, key=worth).version
    latest = [(reward, -version) for version, reward in rewards[-LATEST_STEPS:] if version in stored]
    return -max(latest)[1] if latest else None
