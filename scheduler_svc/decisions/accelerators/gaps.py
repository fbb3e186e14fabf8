"""Time until a pool has work again. Pure but for what it remembers.

It is expected from the pool's open members: samplers report which tasks have turns with their environments, and since when
(`common/accelerators/away.py`). A sampler has work again when the first of its members returns, or a new version's first group is opened.
Trainers have when all members of a step have, and those report nothing: how long it took, from a task's last turn to its batch,
is learnt from batches.

Where members are not known, or nothing is known of their environments, times between work of the whole pool serve, as observed: from when
none of its executors has any until one has.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from common.accelerators.away import MAX_AWAY_S, REMEMBERED, TASKS, TaskAway
from scheduler_svc.decisions.accelerators import prediction
from scheduler_svc.decisions.accelerators.prediction import Latencies, OpenWork
from scheduler_svc.decisions.accelerators.state import Quantiles

NEWEST = 64
"""Newest gaps of a pool that count."""
MAX_GAP_S = MAX_AWAY_S
"""Longer ones are pauses between tasks, not gaps of a task."""
DEPARTURES = 8
"""Newest times at which a task's turns were reported to be sent."""
SAME_S = 0.01
"""Times that reports name with less between them are the same: they are in whole milliseconds."""
SILENT_S = 10.0
"""A report that is older is of a sampler that is gone."""
OPENS = 0.9
"""Chance that a new version opens groups. A task's last ones do not."""
PRIORS_S = 1.0
"""Maximum age of what is assumed of tasks that nothing was observed of."""
KEPT = 4 * TASKS
"""Maximum tasks of a pool that are remembered beside those in reports."""
NEVER_S = float("-inf")
NOTHING = Latencies(())


@dataclass
class _Task:
    sent_s: deque[float] = field(default_factory=lambda: deque[float](maxlen=DEPARTURES))
    batch_s: deque[float] = field(default_factory=lambda: deque[float](maxlen=REMEMBERED))
    """Times from its last turn to its batch."""
    version: int = -1
    """Of its newest batch."""
    batched_s: float = NEVER_S
    returned: Latencies = NOTHING
    opened: Latencies = NOTHING
    batch: Latencies = NOTHING


@dataclass(frozen=True)
class _Told:
    """What a sampler reported of its members."""

    at_s: float
    away: Sequence[TaskAway]
    is_here: bool
    """Whether it is on this accelerator, and its members return to it; those of others do to theirs."""


@dataclass
class _Pool:
    idle_since_s: float | None = None
    lasted_s: deque[float] = field(default_factory=lambda: deque[float](maxlen=NEWEST))
    latencies: Latencies = NOTHING
    reports: dict[str, "_Told"] = field(default_factory=dict[str, "_Told"])
    """The newest of each sampler."""
    tasks: dict[str, _Task] = field(default_factory=dict[str, _Task])
    priors: tuple[Latencies, Latencies, Latencies] = (NOTHING, NOTHING, NOTHING)
    """For tasks of which nothing was observed, those of all others: of members, of openings, and of batches."""
    priors_until_s: float = NEVER_S

    def present(self, now_s: float) -> list[tuple[_Told, TaskAway]]:
        """Tasks of all reports, with the report of each."""
        return [(told, each) for told in self.reports.values() if now_s - told.at_s <= SILENT_S for each in told.away]


class Gaps:
    """Of the pools of one accelerator."""

    def __init__(self, sampled: Collection[str], trained: Collection[str]) -> None:
        """Pools with a sampler, and with a trainer, on the accelerator."""
        self._sampled, self._trained = frozenset(sampled), frozenset(trained)
        self._pools = {name: _Pool() for name in self._sampled | self._trained}

    def observe(self, pool: str, now_s: float, *, has_work: bool) -> None:
        """Whether any executor of the pool has work now."""
        one = self._pools[pool]
        if not has_work:
            one.idle_since_s = now_s if one.idle_since_s is None else one.idle_since_s
        elif one.idle_since_s is not None:
            lasted_s, one.idle_since_s = now_s - one.idle_since_s, None
            if 0 <= lasted_s <= MAX_GAP_S:
                one.lasted_s.append(lasted_s)
                one.latencies = NOTHING

    def members(self, pool: str, sampler: str, at_s: float, away: Sequence[TaskAway], *, is_here: bool = True) -> None:
        """Members that are away, as a sampler of the pool reports at `at_s`. Those of another accelerator's tell when batches come.

        A task that has moved is reported by two for a while: how long members are away from this accelerator's sampler, it alone knows.
        """
        if (one := self._pools.get(pool)) is None:
            return
        one.reports[sampler] = _Told(at_s, away, is_here)
        for each in away:
            task = one.tasks.setdefault(each.task, _Task())
            if is_here and each.returned_ms:
                task.returned = _seconds(each.returned_ms)
            if is_here and each.opened_ms:
                task.opened = _seconds(each.opened_ms)
            if each.sent_ms is not None and (not task.sent_s or at_s - each.sent_ms / 1000 > task.sent_s[-1] + SAME_S):
                task.sent_s.append(at_s - each.sent_ms / 1000)
        if len(one.tasks) > KEPT:
            reported = {each.task for told in one.reports.values() for each in told.away}
            one.tasks = {name: task for name, task in one.tasks.items() if name in reported}

    def batched(self, pool: str, task: str, version: int, at_s: float) -> None:
        """The batch that a task's version is trained with came at `at_s`; known ones do nothing."""
        one = self._pools.get(pool)
        known = one.tasks.get(task) if one is not None else None
        if one is None or known is None or version <= known.version:
            return
        known.version, known.batched_s = version, at_s
        before_s = [sent_s for sent_s in known.sent_s if sent_s <= at_s]
        if before_s:
            known.batch_s.append(at_s - before_s[-1])
            known.batch = Latencies.of(list(known.batch_s))

    def expected(self, pool: str, now_s: float) -> Quantiles | None:
        """Time until the next work of the pool is ready, beside any that is; None where it cannot be expected from what was observed.

        Observed gaps say nothing while the pool has work.
        """
        if (one := self._pools.get(pool)) is None:
            return None
        found = prediction.gap(now_s, self._open_work(pool, one, now_s))
        if found is not None or one.idle_since_s is None:
            return found
        if one.lasted_s and not one.latencies.ordered_s:
            one.latencies = Latencies.of(list(one.lasted_s))
        return prediction.gap(now_s, [OpenWork(one.latencies, (one.idle_since_s,))])

    def _open_work(self, pool: str, one: _Pool, now_s: float) -> list[OpenWork]:
        if now_s >= one.priors_until_s:
            one.priors, one.priors_until_s = _together(one.tasks), now_s + PRIORS_S
        found: list[OpenWork] = []
        present = one.present(now_s)
        if pool in self._sampled:
            for told, each in present:
                if told.is_here:
                    found += _of_sampler(told.at_s, each, one.tasks[each.task], one.priors)
        if pool in self._trained:
            for name in _in_a_step(present):
                known = one.tasks[name]
                if known.sent_s[-1] > known.batched_s:
                    found.append(OpenWork(known.batch if known.batch.ordered_s else one.priors[2], (known.sent_s[-1],)))
        return found


def _of_sampler(at_s: float, each: TaskAway, known: _Task, priors: tuple[Latencies, Latencies, Latencies]) -> list[OpenWork]:
    """Members, and the first group of a new version."""
    since_s = tuple(at_s - left_ms / 1000 for left_ms, _ in each.left_ms)
    chances = tuple(per_cent / 100 for _, per_cent in each.left_ms)
    found = [OpenWork(known.returned if known.returned.ordered_s else priors[0], since_s, chances, each.members)]
    if each.opening_ms is not None:
        opened = known.opened if known.opened.ordered_s else priors[1]
        found.append(OpenWork(opened, (at_s - each.opening_ms / 1000,), (OPENS,)))
    return found


def _in_a_step(present: Sequence[tuple[_Told, TaskAway]]) -> list[str]:
    """Tasks that have sent a turn since a version was announced; each once, also where two samplers report it."""
    sent_s, opening_s = dict[str, float](), dict[str, float]()
    for told, each in present:
        for ago_ms, newest_s in ((each.sent_ms, sent_s), (each.opening_ms, opening_s)):
            if ago_ms is not None:
                newest_s[each.task] = max(told.at_s - ago_ms / 1000, newest_s.get(each.task, NEVER_S))
    return [task for task, at_s in sent_s.items() if at_s >= opening_s.get(task, NEVER_S)]


def _together(tasks: dict[str, _Task]) -> tuple[Latencies, Latencies, Latencies]:
    """Latencies of all tasks of a pool."""
    known = tasks.values()
    return (
        Latencies.of([each for one in known for each in one.returned.ordered_s]),
        Latencies.of([each for one in known for each in one.opened.ordered_s]),
        Latencies.of([each for one in known for each in one.batch.ordered_s]),
    )


def _seconds(quantiles_ms: Sequence[int]) -> Latencies:
    return Latencies(tuple(each / 1000 for each in quantiles_ms))
