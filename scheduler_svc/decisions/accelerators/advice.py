"""What sharing accelerators would save and slow down, expected from a trace of tasks. Pure.

For every pair of pools, and for all together: `worth` of one accelerator for them, against each pool alone on it. Which accelerator each
task's pool is placed on comes from `place`. Where sharing loses, that is said.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from common.accelerators import Tier
from common.accelerators.trace import Executor, Task, Trace
from scheduler_svc.decisions.accelerators.load import Profile, Worth, worth
from scheduler_svc.decisions.accelerators.moves import Key, Moves, measured
from scheduler_svc.decisions.accelerators.placement import Accelerator, Placement, PlacementPolicy, place

MOST_PAIRS = 45
"""Pairs that are looked at: all of ten pools."""


@dataclass(frozen=True)
class Shared:
    """Pools together on one accelerator."""

    pools: tuple[str, ...]
    worth: Worth


@dataclass(frozen=True)
class Advice:
    bubble: dict[str, float]
    """By pool: share of its time for which it leaves an accelerator of its own idle."""
    switch_s: dict[str, float]
    """Expected seconds of a switch to each pool from another."""
    together: Shared | None
    """All pools; None of a single one."""
    pairs: tuple[Shared, ...]
    """The best first."""
    placement: Placement

    @property
    def best(self) -> Shared | None:
        """What saves most; None where nothing saves anything."""
        found = [one for one in (self.together, *self.pairs) if one is not None and one.worth.is_worth_it]
        return max(found, key=lambda one: one.worth.saved_share, default=None)


def advice(trace: Trace, accelerators: Sequence[Accelerator]) -> Advice:
    """`accelerators`: those to place the tasks on. Raises: ValueError for a trace without a step."""
    profiles = [profile_of(task, trace.executors) for task in trace.tasks if task.steps]
    if not profiles:
        raise ValueError("the trace has no step of any task")
    pools = sorted({one.pool for one in profiles})
    switch_s = {pool: switch_to_s(pool, trace.executors) for pool in pools}
    pairs = [_shared(pair, profiles, switch_s) for pair in list(combinations(pools, 2))[:MOST_PAIRS]] if len(pools) > 2 else []
    return Advice(
        {pool: _bubble([one for one in profiles if one.pool == pool]) for pool in pools},
        switch_s,
        _shared(tuple(pools), profiles, switch_s) if len(pools) > 1 else None,
        tuple(sorted(pairs, key=lambda one: (-one.worth.saved_share, one.pools))),
        place(profiles, accelerators, PlacementPolicy.SPREAD_BACKFILL),
    )


def profile_of(task: Task, executors: Sequence[Executor]) -> Profile:
    """Mean step of a task that has steps."""
    own = [one for one in executors if one.pool == task.pool]
    device_bytes, host_bytes = sum(one.device_bytes for one in own), sum(one.host_bytes for one in own)
    return Profile(
        task.task, task.pool, task.busy_s / len(task.steps), task.away_s / len(task.steps), len(task.steps), device_bytes, host_bytes
    )


def switch_to_s(pool: str, executors: Sequence[Executor]) -> float:
    """Expected seconds of a switch to a pool: another's executors are parked in host memory, and its own come from there.

    0 where the trace has none of its executors.
    """
    durations: dict[Key, tuple[float, ...]] = {(one.executor, *tiers): each for one in executors for tiers, each in one.moves.items()}
    moves = Moves(measured(durations))
    there_s, away_s = 0.0, dict[str, float]()
    for one in executors:
        if one.pool == pool:
            there_s += moves.seconds(one.executor, Tier.HOST, Tier.DEVICE, one.device_bytes)
        else:
            parking_s = moves.seconds(one.executor, Tier.DEVICE, Tier.HOST, one.device_bytes)
            away_s[one.pool] = away_s.get(one.pool, 0.0) + parking_s
    is_there = any(one.pool == pool for one in executors)
    return there_s + (sum(away_s.values()) / len(away_s) if away_s else 0.0) if is_there else 0.0


def _shared(pools: Sequence[str], profiles: Sequence[Profile], switch_s: Mapping[str, float]) -> Shared:
    return Shared(tuple(pools), worth([one for one in profiles if one.pool in pools], switch_s))


def _bubble(profiles: Sequence[Profile]) -> float:
    """Of its steps together."""
    busy_s, whole_s = sum(one.busy_s for one in profiles), sum(one.busy_s + one.away_s for one in profiles)
    return 1 - busy_s / whole_s if whole_s else 0.0
