"""Assignment of keys (tasks, groups or prefixes) to home replicas within a pool. Pure.

first  a key without a home gets the least-loaded replica
lost   a key whose home cannot serve it gets the least-loaded replica
gain   per round, at most one key per pool moves from the most to the least loaded replica, if its work then waits so much less that
       the move pays off

Expected wait at a replica is proportional to the load of the other keys there. Each move for a gain therefore lowers the sum of
load × load over all pairs of keys at one replica: on unchanged input the moves terminate, and none is undone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

MIN_GAIN = 0.05
"""Minimum difference of loads for a move: smaller differences are within the error of measured loads."""


class Why(StrEnum):
    FIRST = "first"
    LOST = "lost"
    GAIN = "gain"


@dataclass(frozen=True)
class Keyed:
    """A key to assign, and its requirements."""

    kind: str
    """Kind of key: `task`, `group` or `prefix`."""
    key: str
    pool: tuple[str, str]
    """Service and pool."""
    replicas: tuple[str, ...]
    """Names of replicas that can serve the key now. Replicas of several pools with one name share a device: their loads add up."""
    load: float
    """Fraction of time for which the key keeps its home busy."""
    left_s: float
    """Remaining work in seconds."""
    home: str | None = None
    move_s: float = 0.0
    """One-time cost of a move in seconds."""
    stays: bool = False
    """Whether the key is excluded from moves for a gain now."""


@dataclass(frozen=True)
class Move:
    keyed: Keyed
    replica: str
    why: Why


def homes(keys: Sequence[Keyed]) -> list[Move]:
    """New homes to assign. A key that no replica can serve keeps its home, which may come back."""
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
