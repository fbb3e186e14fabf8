"""Which accelerator a job's pool is placed on, and when it moves to another. Pure.

    isolated         one job an accelerator
    pack             the fullest accelerator with room
    spread           the one whose jobs would meet the new one least: the smallest sum of busy shares
    spread-backfill  the same, and jobs that find no room fill the gaps of the least loaded ones
    co-groups        groups of a fixed size that take turns, as RollMux (arXiv 2512.11306) does

Names are those of PlexRL (arXiv 2605.20863), whose text does not define them; the definitions are ours. A pool that is on an accelerator
already counts as no further memory there, and among equals its place is taken: the job's base model need not be fetched.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from scheduler_svc.decisions.accelerators.load import Profile, step_times
from scheduler_svc.decisions.accelerators.state import Budget

FULL = 1.0
"""Maximum sum of busy shares: beyond it no schedule can keep up."""
OVERFULL = 1.5
"""The same for jobs that fill gaps."""
GROUP = 4
"""Jobs of a co-execution group."""
MIN_GAIN = 0.05
"""Minimum gain of a move, as a share of what is left of the job, besides what the move costs."""


class PlacementPolicy(StrEnum):
    ISOLATED = "isolated"
    PACK = "pack"
    SPREAD = "spread"
    SPREAD_BACKFILL = "spread-backfill"
    CO_GROUPS = "co-groups"


@dataclass(frozen=True)
class Accelerator:
    """An accelerator and the jobs that are on it."""

    accelerator: str
    budget: Budget
    jobs: tuple[Profile, ...] = ()

    @property
    def load(self) -> float:
        return sum(one.busy_share for one in self.jobs)

    def has(self, pool: str) -> bool:
        return any(one.pool == pool for one in self.jobs)

    def has_memory_for(self, job: Profile) -> bool:
        """Whether its pool fits the device, and all pools fit host memory, as in the middle of a switch."""
        in_host = {one.pool: one.host_bytes for one in (*self.jobs, job)}
        return job.device_bytes <= self.budget.device_bytes and sum(in_host.values()) <= self.budget.host_bytes

    def plus(self, job: Profile) -> "Accelerator":
        return Accelerator(self.accelerator, self.budget, (*self.jobs, job))


@dataclass(frozen=True)
class Placement:
    """Accelerators by job. `waiting`: jobs without a place, in their order. `filling`: placed ones that fill gaps."""

    accelerators: dict[str, str]
    waiting: tuple[str, ...] = ()
    filling: frozenset[str] = field(default_factory=frozenset[str])
    expected_load: dict[str, float] = field(default_factory=dict[str, float])
    """Sum of busy shares by accelerator, the new jobs included."""


def place(profiles: Sequence[Profile], accelerators: Sequence[Accelerator], policy: PlacementPolicy) -> Placement:
    """Places of new jobs, the first first; a job without room does not keep later ones from theirs."""
    states = {one.accelerator: one for one in sorted(accelerators, key=lambda one: one.accelerator)}
    chosen: dict[str, str] = {}
    waiting: list[str] = []
    filling: set[str] = set()
    for job in profiles:
        fitting = [one for one in states.values() if one.has_memory_for(job)]
        found = _choice(job, fitting, policy)
        if found is None and policy is PlacementPolicy.SPREAD_BACKFILL:
            found = min((one for one in fitting if one.load + job.busy_share <= OVERFULL), key=lambda one: _spread(one, job), default=None)
            if found is not None:
                filling.add(job.job)
        if found is None:
            waiting.append(job.job)
            continue
        chosen[job.job] = found.accelerator
        states[found.accelerator] = found.plus(job)
    return Placement(chosen, tuple(waiting), frozenset(filling), {name: one.load for name, one in states.items()})


def _choice(job: Profile, fitting: Sequence[Accelerator], policy: PlacementPolicy) -> Accelerator | None:
    if policy is PlacementPolicy.ISOLATED:
        return min((one for one in fitting if not one.jobs), key=lambda one: one.accelerator, default=None)
    if policy is PlacementPolicy.CO_GROUPS:
        return min((one for one in fitting if len(one.jobs) < GROUP), key=lambda one: (len(one.jobs), one.accelerator), default=None)
    room = [one for one in fitting if not one.jobs or one.load + job.busy_share <= FULL]
    if policy is PlacementPolicy.PACK:
        return min(room, key=lambda one: (-one.load, not one.has(job.pool), one.accelerator), default=None)
    return min(room, key=lambda one: _spread(one, job), default=None)


def _spread(one: Accelerator, job: Profile) -> tuple[float, bool, str]:
    return round(one.load, 6), not one.has(job.pool), one.accelerator


def better_place(
    job: Profile, here: Accelerator, others: Sequence[Accelerator], *, switch_s: float, move_s: float, full: float = FULL
) -> str | None:
    """The accelerator on which what is left of the job ends sooner by more than `move_s` and a twentieth; None to stay.

    `here`: its accelerator, with it among its jobs. `switch_s`: of each switch there; `move_s`: seconds of moving the job, once.
    `full`: maximum load of the other.
    """
    stays_s = job.steps * _step_s(job, here.jobs, switch_s)
    best: tuple[float, str] | None = None
    for one in sorted(others, key=lambda each: each.accelerator):
        if one.accelerator == here.accelerator or not one.has_memory_for(job) or one.load + job.busy_share > full:
            continue
        moved_s = move_s + job.steps * _step_s(job, one.plus(job).jobs, switch_s)
        if moved_s < (1 - MIN_GAIN) * stays_s and (best is None or moved_s < best[0]):
            best = moved_s, one.accelerator
    return best[1] if best is not None else None


def _step_s(job: Profile, jobs: Sequence[Profile], switch_s: float) -> float:
    times = step_times(jobs, {one.pool: switch_s for one in jobs})
    return next(seconds for one, seconds in zip(jobs, times, strict=True) if one.job == job.job)
