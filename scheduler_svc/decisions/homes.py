"""Homes: which accelerator of a pool that is on several a task samples on, and which it trains on. Pure.

A home is chosen by `place`: among the accelerators of the pool, the one whose jobs would meet the new one least. It is kept until its
executor is lost, or until another accelerator is better by more than the move costs (`better_place`), for this task *and* for all that are
on either of both: what one task gains must not be another's loss. The expected seconds of all jobs together therefore fall with each such
move by more than it costs, so that on unchanged input moves end, and none is undone.

The jobs of an accelerator are those that have their home there, and those of pools that are on no other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from scheduler_svc.decisions.accelerators.load import Profile, step_times
from scheduler_svc.decisions.accelerators.placement import Accelerator, PlacementPolicy, better_place, place
from scheduler_svc.decisions.accelerators.state import Budget

MOST_TRIED = 4
"""Maximum jobs of a pool that are tried on another accelerator in one look: expected step times of many jobs take milliseconds."""
MIN_TOGETHER = 0.01
"""Minimum gain of all jobs on both accelerators, as a share of what is left of them: more than expected step times are exact."""
UNBOUNDED = float("inf")
"""Load that an accelerator may have: where all are overloaded, the least loaded one is still better."""
NO_BUDGET = Budget(0, 0)
"""Executors of the pool are on each accelerator already, so a move of a task needs no room for another."""


class Why(StrEnum):
    FIRST = "first"
    """It had no home."""
    LOST = "lost"
    """The executor at its home cannot work, or is none any more."""
    GAIN = "gain"
    """Steps are expected to be faster by more than the move costs."""


@dataclass(frozen=True)
class Job:
    """What a task computes on accelerators in one function."""

    task: str
    service: str
    """rollout or trainer."""
    profile: Profile
    """Its `job` is unique; its `pool` is the executor's name, since a switch is between executors."""
    choices: tuple[str, ...]
    """Accelerators of its pool whose executor works."""
    home: str | None = None
    """That of a pool that is on one accelerator alone is given, too: its jobs count there."""
    move_s: float = 0.0
    """Seconds that a move to another accelerator costs it, once."""
    stays: bool = False
    """Whether it may not move for a gain now: its last move is recent, or has not taken effect."""


@dataclass(frozen=True)
class Move:
    job: Job
    accelerator: str
    why: Why


@dataclass
class _Loads:
    """Jobs by accelerator."""

    at: dict[str, list[Profile]] = field(default_factory=dict[str, list[Profile]])

    def accelerator(self, name: str) -> Accelerator:
        return Accelerator(name, NO_BUDGET, tuple(self.at.get(name, ())))

    def add(self, name: str, profile: Profile) -> None:
        self.at.setdefault(name, []).append(profile)

    def remove(self, name: str, profile: Profile) -> None:
        self.at[name] = [one for one in self.at[name] if one.job != profile.job]


def moves(jobs: Sequence[Job], switch_s: Mapping[str, float]) -> list[Move]:
    """Homes of jobs that have none or have lost it, and at most one move for a gain in each pool and service.

    `switch_s`: expected seconds of a switch by accelerator. A job without choices keeps its home, whose executor may come back.
    """
    loads = _Loads()
    homeless: list[Job] = []
    for job in sorted(jobs, key=lambda one: one.profile.job):
        if job.home is not None and (job.home in job.choices or not job.choices):
            loads.add(job.home, _here(job.profile))
        elif job.choices:
            homeless.append(job)
    found = [Move(job, _placed(job, loads), Why.FIRST if job.home is None else Why.LOST) for job in homeless]
    lost = {move.job.profile.job for move in found}
    for executor in sorted({job.profile.pool for job in jobs}):
        candidates = [job for job in jobs if job.profile.pool == executor and job.profile.job not in lost]
        if (gain := _gain(candidates, loads, switch_s)) is not None:
            found.append(gain)
    return found


def _placed(job: Job, loads: _Loads) -> str:
    """The accelerator of a job without one, which is added there. Where all are full, the one with the least load."""
    there = [loads.accelerator(name) for name in sorted(job.choices)]
    profile = _here(job.profile)
    placement = place([profile], there, PlacementPolicy.SPREAD_BACKFILL)
    chosen = placement.accelerators.get(profile.job) or min(there, key=lambda one: (one.load, one.accelerator)).accelerator
    loads.add(chosen, profile)
    return chosen


def _gain(jobs: Sequence[Job], loads: _Loads, switch_s: Mapping[str, float]) -> Move | None:
    """The move of one of an executor's jobs from its most loaded accelerator to its least loaded, if it gains more than it costs."""
    movable = [job for job in jobs if job.home in job.choices and len(job.choices) > 1 and not job.stays]
    if not movable:
        return None
    names = sorted({name for job in movable for name in job.choices})
    fullest = max({job.home for job in movable if job.home is not None}, key=lambda name: (loads.accelerator(name).load, name))
    emptiest = min(names, key=lambda name: (loads.accelerator(name).load, name))
    here, there = loads.accelerator(fullest), loads.accelerator(emptiest)
    excess = here.load - there.load
    if emptiest == fullest or excess <= 0:
        return None
    tried = [job for job in movable if job.home == fullest and emptiest in job.choices and 0 < job.profile.busy_share < excess]
    tried.sort(key=lambda one: (abs(one.profile.busy_share - excess / 2), one.profile.job))
    switch = max(switch_s.get(fullest, 0.0), switch_s.get(emptiest, 0.0))
    for job in tried[:MOST_TRIED]:
        profile = _here(job.profile)
        if better_place(profile, here, [there], switch_s=switch, move_s=job.move_s, full=UNBOUNDED) is None:
            continue
        before_s, after_s = _together_s(here, there, switch), _together_s(_without(here, profile), there.plus(profile), switch)
        if before_s - after_s > job.move_s + MIN_TOGETHER * before_s:
            loads.remove(fullest, profile)
            loads.add(emptiest, profile)
            return Move(job, emptiest, Why.GAIN)
    return None


def _together_s(here: Accelerator, there: Accelerator, switch_s: float) -> float:
    """Expected seconds of all that is left of the jobs on both."""
    found = 0.0
    for one in (here, there):
        times = step_times(one.jobs, {each.pool: switch_s for each in one.jobs}) if one.jobs else []
        found += sum(each.steps * seconds for each, seconds in zip(one.jobs, times, strict=True))
    return found


def _without(one: Accelerator, profile: Profile) -> Accelerator:
    return Accelerator(one.accelerator, one.budget, tuple(each for each in one.jobs if each.job != profile.job))


def _here(profile: Profile) -> Profile:
    return replace(profile, device_bytes=0, host_bytes=0)
