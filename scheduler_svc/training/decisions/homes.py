"""Home for (kind, key) among the replicas of a pool. Pure.

    first  a key without a home gets the replica with the least load
    lost   a key whose home cannot serve does, too
    gain   in each pool at most one key a look moves from the most to the least loaded replica, where its work waits for so much less that
           it pays the move

Work at a replica is expected to wait in proportion to the load of other keys there. So the sum of load × load over all pairs of keys at one
replica falls with each move for a gain: on unchanged input moves end, and none is undone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

MIN_GAIN = 0.05
"""Minimum difference of loads for a move: a smaller one is within the error of measured loads."""


class Why(StrEnum):
    FIRST = "first"
    LOST = "lost"
    GAIN = "gain"


@dataclass(frozen=True)
class Keyed:
    """A key, and what it needs of its home."""

    kind: str
    """`task`, `group` or `prefix`."""
    key: str
    pool: tuple[str, str]
    """Service and pool."""
    replicas: tuple[str, ...]
    """Names of those that can serve it now. Replicas of several pools with one name share a device: their loads add up."""
    load: float
    """Share of time for which it keeps its home busy."""
    left_s: float
    """Seconds of work that it has left."""
    home: str | None = None
    move_s: float = 0.0
    """Seconds that a move costs, once."""
    stays: bool = False
    """Whether it may not move for a gain now."""


@dataclass(frozen=True)
class Move:
    keyed: Keyed
    replica: str
    why: Why


def homes(keys: Sequence[Keyed]) -> list[Move]:
    """New homes. A key that no replica can serve keeps the one that it has, which may come back."""
    settled: dict[str, float] = {}
    homeless: list[Keyed] = []
    ordered = sorted(keys, key=lambda one: (one.pool, one.kind, one.key))
    for one in ordered:
        if one.home is not None and (one.home in one.replicas or not one.replicas):
            settled[one.home] = settled.get(one.home, 0.0) + one.load
        elif one.replicas:
            homeless.append(one)
    found: list[Move] = []
    for one in homeless:
        replica = min(sorted(one.replicas), key=lambda name: settled.get(name, 0.0))
        settled[replica] = settled.get(replica, 0.0) + one.load
        found.append(Move(one, replica, Why.FIRST if one.home is None else Why.LOST))
    for pool in sorted({one.pool for one in ordered}):
        movable = [one for one in ordered if one.pool == pool and one.home in one.replicas and not one.stays]
        if (gain := _best_gain(movable, settled)) is not None:
            settled[str(gain.keyed.home)] -= gain.keyed.load
            settled[gain.replica] = settled.get(gain.replica, 0.0) + gain.keyed.load
            found.append(gain)
    return found


def _best_gain(keys: Sequence[Keyed], loads: Mapping[str, float]) -> Move | None:
    gains: list[tuple[float, Move]] = []
    for one in keys:
        replica = min(sorted(one.replicas), key=lambda name: loads.get(name, 0.0))
        less = loads[str(one.home)] - one.load - loads.get(replica, 0.0)
        if replica != one.home and less > MIN_GAIN and less * one.left_s > one.move_s:
            gains.append((less * one.left_s - one.move_s, Move(one, replica, Why.GAIN)))
    return max(gains, key=lambda gain: gain[0])[1] if gains else None
