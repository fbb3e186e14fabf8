"""Which accelerator a job's pool is placed on: the one whose jobs would meet the new one least, by the sum of their busy shares. Pure.

A pool that is on an accelerator already counts as no further memory there, and among equals its place is taken: the job's base model need
not be fetched.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler_svc.accelerators.decisions.load import Profile
from scheduler_svc.accelerators.decisions.state import MemoryBudget

FULL = 1.0
"""Maximum sum of busy shares: beyond it no schedule can keep up."""


@dataclass(frozen=True)
class Accelerator:
    """An accelerator and the jobs that are on it."""

    accelerator: str
    budget: MemoryBudget
    jobs: tuple[Profile, ...] = ()

    @property
    def load(self) -> float:
        return sum(one.busy_share for one in self.jobs)

    def has_room_for(self, job: Profile) -> bool:
        """Whether its pool fits the device, all pools fit host memory, as in the middle of a switch, and there is time for its work."""
        in_host = {one.pool: one.host_bytes for one in (*self.jobs, job)}
        fits = job.device_bytes <= self.budget.device_bytes and sum(in_host.values()) <= self.budget.host_bytes
        return fits and (not self.jobs or self.load + job.busy_share <= FULL)

    def plus(self, job: Profile) -> "Accelerator":
        return Accelerator(self.accelerator, self.budget, (*self.jobs, job))


@dataclass(frozen=True)
class Placement:
    """Accelerators by job. `waiting`: jobs without a place, in their order."""

    accelerators: dict[str, str]
    waiting: tuple[str, ...] = ()
    expected_load: dict[str, float] = field(default_factory=dict[str, float])
    """Sum of busy shares by accelerator, the new jobs included."""


def place(profiles: Sequence[Profile], accelerators: Sequence[Accelerator]) -> Placement:
    """Places of new jobs, the first first; a job without room does not keep later ones from theirs."""
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
