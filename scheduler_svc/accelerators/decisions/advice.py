"""Expected savings and slowdown of sharing accelerators, from a trace of tasks. Pure.

Computes `worth` of one shared accelerator for every pair of pools, and for all pools together, against running each pool alone on it; the
worth is negative if sharing loses. A task's pool is placed on the accelerator with the smallest sum of busy shares. A pool already placed
on an accelerator needs no further memory there; on ties that accelerator is chosen, because the base model need not be fetched.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from common.accelerators import Function, Tier
from common.accelerators.trace import ENVIRONMENT, Executor, Phase, Task, Trace
from scheduler_svc.accelerators.decisions.load import Profile, Worth, worth
from scheduler_svc.accelerators.decisions.state import Demand, MemoryBudget
from scheduler_svc.accelerators.decisions.tiers import Key, Moves, Residents, measured, where_to_park

FULL = 1.0
"""Maximum sum of busy shares; beyond it no schedule can keep up."""


@dataclass(frozen=True)
class Accelerator:
    """An accelerator and the jobs placed on it."""

    accelerator: str
    budget: MemoryBudget
    jobs: tuple[Profile, ...] = ()

    @property
    def load(self) -> float:
        return sum(one.busy_share for one in self.jobs)

    def has_room_for(self, job: Profile) -> bool:
        """Whether the job's pool fits the device, all pools together fit host memory (as during a switch), and time is left for the job."""
        in_host = {one.pool: one.host_bytes for one in (*self.jobs, job)}
        fits = job.device_bytes <= self.budget.device_bytes and sum(in_host.values()) <= self.budget.host_bytes
        return fits and (not self.jobs or self.load + job.busy_share <= FULL)

    def plus(self, job: Profile) -> "Accelerator":
        return Accelerator(self.accelerator, self.budget, (*self.jobs, job))


@dataclass(frozen=True)
class Placement:
    """Accelerator by job. `waiting`: jobs that fit on no accelerator, in the order given."""

    accelerators: dict[str, str]
    waiting: tuple[str, ...] = ()
    expected_load: dict[str, float] = field(default_factory=dict[str, float])
    """Sum of busy shares by accelerator, including the new jobs."""


def place(profiles: Sequence[Profile], accelerators: Sequence[Accelerator]) -> Placement:
    """Place new jobs in order; a job that fits nowhere does not block later ones."""
    states = {one.accelerator: one for one in sorted(accelerators, key=lambda one: one.accelerator)}
    chosen: dict[str, str] = {}
    waiting: list[str] = []
    for job in profiles:
        with_room = [one for one in states.values() if one.has_room_for(job)]
        found = min(with_room, key=lambda one: _rank(one, job), default=None)
        if found is None:
            waiting.append(job.job)
            continue
        chosen[job.job] = found.accelerator
        states[found.accelerator] = found.plus(job)
    return Placement(chosen, tuple(waiting), {name: one.load for name, one in states.items()})


def _rank(one: Accelerator, job: Profile) -> tuple[float, bool, str]:
    return round(one.load, 6), all(each.pool != job.pool for each in one.jobs), one.accelerator


MAX_PAIRS = 45
"""Maximum number of pairs evaluated: all pairs of ten pools."""
ORDER_S = 0.02
"""Seconds of a switch beyond its moves (orders, answers and locks) on an idle machine, measured at b1765f0
(`bench/plex/real/predict.py` in 3d590f0). On a busy machine they take several times as long."""
MIN_SAVED_PER_SLOWDOWN = 0.05
"""Minimum saved share of accelerator time per added step time: 5 % for twice the step time, 10 % for three times."""
MAX_VISITS = 32
"""Maximum visits per step that are simulated; larger numbers are capped."""
ENOUGH_HOST_BYTES = 2**62
NEVER_S = float("inf")


@dataclass(frozen=True)
class Shared:
    """Worth of pools sharing one accelerator."""

    pools: tuple[str, ...]
    worth: Worth


@dataclass(frozen=True)
class Advice:
    bubble: dict[str, float]
    """Idle fraction of an exclusive accelerator, by pool."""
    switch_s: dict[str, float]
    """Expected switch seconds when a pool follows another on the accelerator, with all pools on one."""
    unknown: tuple[str, ...]
    """Pools without an executor in the trace: their switch times are unknown, and counted as 0."""
    together: Shared | None
    """Worth if all pools share one accelerator; None for a single pool."""
    pairs: tuple[Shared, ...]
    """Worth if two pools share one accelerator, for pairs of pools, the largest savings first."""
    placement: Placement

    @property
    def best(self) -> Shared | None:
        """Sharing with the largest savings; None if no combination saves enough for its slowdown."""
        found = [one for one in (self.together, *self.pairs) if one is not None and _pays(one.worth)]
        return max(found, key=lambda one: one.worth.saved_share, default=None)


def _pays(found: Worth) -> bool:
    return found.is_worth_it and found.saved_share >= MIN_SAVED_PER_SLOWDOWN * (found.slowdown - 1)


def advice(trace: Trace, accelerators: Sequence[Accelerator], device_bytes: int | None = None) -> Advice:
    """Advice from a trace. `accelerators`: where to place the tasks. `device_bytes`: memory of the shared accelerator; None: as much as the
    largest pool needs.

    Raises: ValueError for a trace without a step.
    """
    profiles = [profile_of(task, trace.executors) for task in trace.tasks if task.steps]
    if not profiles:
        raise ValueError(
            "the trace has no step of any task; train some steps in each pool, by tasks as they usually are, and plan after that"
        )
    pools = tuple(sorted({one.pool for one in profiles}))

    def shared(of: tuple[str, ...]) -> Shared:
        own = [one for one in profiles if one.pool in of]
        return Shared(of, worth(own, switches_s(own, trace.executors, device_bytes)))

    pairs = [shared(pair) for pair in list(combinations(pools, 2))[:MAX_PAIRS]] if len(pools) > 2 else []
    return Advice(
        {pool: _bubble([one for one in profiles if one.pool == pool]) for pool in pools},
        switches_s(profiles, trace.executors, device_bytes),
        tuple(sorted(set(pools) - {one.pool for one in trace.executors})),
        shared(pools) if len(pools) > 1 else None,
        tuple(sorted(pairs, key=lambda one: (-one.worth.saved_share, one.pools))),
        place(profiles, accelerators),
    )


def profile_of(task: Task, executors: Sequence[Executor]) -> Profile:
    """Profile of a task's mean step. Functions that no executor of its pool performs run elsewhere, such as on exclusive samplers."""
    own = [one for one in executors if one.pool == task.pool]
    there = {function for one in own for function in one.functions} or set(Function)
    steps = tuple(_elsewhere(phases, there) for phases in task.steps)
    members = tuple(tuple(_elsewhere(phases, there) for phases in each) for each in task.members)
    seen, count = replace(task, steps=steps, members=members), len(steps)
    visits = sum(
        max((_visits((*member, *phases)) for member in seen.members_of(number)), default=_visits(phases))
        for number, phases in enumerate(steps)
    )
    device_bytes, host_bytes = sum(one.device_bytes for one in own), sum(one.host_bytes for one in own)
    return Profile(
        task.task, task.pool, seen.busy_s / count, seen.away_s / count, count, device_bytes, host_bytes, max(1.0, visits / count)
    )


def _elsewhere(phases: Sequence[Phase], there: Collection[str]) -> tuple[Phase, ...]:
    return tuple((what if what in there else ENVIRONMENT, seconds) for what, seconds in phases)


def _visits(phases: Sequence[Phase]) -> int:
    """Number of times that a step begins to use the accelerator; the step before it is assumed to end with the same phase."""
    return sum(
        before == ENVIRONMENT and what != ENVIRONMENT for (before, _), (what, _) in zip((*phases[-1:], *phases), phases, strict=False)
    )


def switches_s(profiles: Sequence[Profile], executors: Sequence[Executor], device_bytes: int | None = None) -> dict[str, float]:
    """Expected switch seconds by pool, when one of its jobs follows one of another pool on the accelerator.

    Pools visit in turn, and `where_to_park` decides which executors leave the device: executors that fit together are not moved. A pool's
    sampler computes in each visit, its trainer in the first of a step. 0 for pools without executors.
    """
    visits: dict[str, int] = {}
    for one in profiles:
        visits[one.pool] = max(visits.get(one.pool, 1), min(MAX_VISITS, round(one.visits)))
    own = [one for one in executors if one.pool in visits]
    by_pool = {pool: sum(one.device_bytes for one in own if one.pool == pool) for pool in sorted(visits)}
    budget = MemoryBudget(max(by_pool.values()) if device_bytes is None else device_bytes, ENOUGH_HOST_BYTES)
    turns = 2 * max(visits.values())
    used = [
        (turn, one)
        for turn in range(turns)
        for pool in by_pool
        for one in sorted((each for each in own if each.pool == pool), key=lambda each: Function.GENERATE in each.functions)
        if Function.GENERATE in one.functions or turn % visits[pool] == 0
    ]
    names = [one.executor for _, one in used]
    executors_used = sorted({*names})
    durations: dict[Key, tuple[float, ...]] = {(one.executor, *tiers): each for one in own for tiers, each in one.moves.items()}
    moves, tiers = Moves(measured(durations)), {one.executor: Tier.HOST for one in own}
    found = dict.fromkeys(by_pool, 0.0)
    for number, (turn, one) in enumerate(used):
        following = [*names[number:], *names]
        demands = [_demand(each, tiers[each.executor]) for each in own]
        residents = Residents.of(demands, moves, {name: float(following.index(name)) for name in executors_used})
        parks = where_to_park(_demand(one, tiers[one.executor]), residents, budget) or ()
        seconds = ORDER_S + moves.seconds(one.executor, tiers[one.executor], Tier.DEVICE, one.device_bytes)
        sizes = {each.executor: each.device_bytes for each in own}
        for park in parks:
            seconds += moves.seconds(park.executor, park.from_tier, park.to_tier, sizes[park.executor])
            tiers[park.executor] = park.to_tier
        tiers[one.executor] = Tier.DEVICE
        if 2 * turn >= turns:  # the first half is warm-up, which brings every executor to its steady-state tier
            found[one.pool] += seconds / (turns // 2)
    return found


def _demand(one: Executor, tier: Tier) -> Demand:
    """Demand of an executor for which only its memory and tier matter."""
    return Demand(one.executor, one.pool, one.functions[0], tier, one.device_bytes, one.host_bytes, one.deepest, None, -NEVER_S)


def _bubble(profiles: Sequence[Profile]) -> float:
    """Idle fraction over all steps of the profiles together."""
    busy_s, whole_s = sum(one.busy_s for one in profiles), sum(one.busy_s + one.away_s for one in profiles)
    return 1 - busy_s / whole_s if whole_s else 0.0
