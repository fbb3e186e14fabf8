"""Keeps the homes of tasks in pools with several replicas: one at a sampler, one at a trainer.

One scheduler replica at a time looks. A task gets its homes when it is submitted, others when a replica cannot serve for LOST_S, and
otherwise only for a gain above what the move costs. Meanwhile messages for a home that cannot serve go to the pool's queue.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import structlog

from common import streams
from common.homes import OWN_QUEUE
from common.messages import ReplicaReport, StepPhases
from scheduler_svc.accelerators import asked
from scheduler_svc.base.database import HOMES_LOCK, Database
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.training.homes import rows
from scheduler_svc.training.homes.choice import Keyed, homes
from scheduler_svc.training.homes.rows import LiveTask, Replica
from scheduler_svc.training.queries.tasks import Home

LOOK_S = 1.0
"""Seconds between looks at who reads which queue, and for tasks without a home."""
REVIEW_S = 30.0
"""Seconds between looks for better homes."""
LOST_S = 60.0
"""Seconds for which a replica cannot serve until tasks leave it: a restart takes less, and what moves does not come back by itself."""
STAYS_S = 300.0
"""Minimum seconds between a task's moves for a gain: what it does at a new home is known after some steps."""
STEPS = 8
"""Latest steps of a task that its load is the mean of."""
MOVE_S, BYTES_PER_S = 0.1, 2.0**30
"""Assumed cost of a move: seconds, and bytes that are fetched a second."""
UNKNOWN = StepPhases(version=1, at_s=0.0, generate_s=1.0, environment_s=1.0, train_s=1.0)
"""A step of a task before any has trained one."""

log = structlog.get_logger()


class Homes:
    def __init__(
        self,
        database: Database,
        replicas: Mapping[tuple[str, str], Sequence[str]],
        reports: Callable[[], Sequence[ReplicaReport] | None],
        now_s: Callable[[], float],
        *,
        review_s: float = REVIEW_S,
        lost_s: float = LOST_S,
    ) -> None:
        """`replicas`: names by service and pool. `reports`: of live replicas; None until they were read once. `now_s`: NATS's time."""
        self._database = database
        self._replicas = replicas
        self._several = [key for key, names in replicas.items() if len(names) > 1]
        self._reports = reports
        self._now_s = now_s
        self._review_s, self._lost_s = review_s, lost_s
        self._began_s = time.monotonic()
        self._ready_s: dict[Replica, float] = {}
        """This process's time at which each replica could serve last."""
        self._reviewed_s = float("-inf")
        self._means, self._typical = _means([])
        """As of the last look for better homes: a task that has come since has trained no step."""

    @property
    def queues(self) -> frozenset[str]:
        """Queues of single trainers."""
        trainers = [key for key in self._several if key[0] == "trainer"]
        return frozenset(streams.queue(key[1], name) for key in trainers for name in self._replicas[key])

    @property
    def look_s(self) -> float | None:
        """Seconds between looks; None where no replica has a name, and migration has cleared what there was. Where no pool has several,
        a look only clears what an earlier pools file left: messages for a home would go to a queue without a reader."""
        if not self._replicas:
            return None
        return LOOK_S if self._several else REVIEW_S

    async def look(self) -> None:
        """Write who reads which queue; choose homes where there are none, and every REVIEW_S better ones. Raises: Unavailable."""
        reports = self._reports() if self._several else []
        if reports is None:  # taken for no reports, it would send everyone's messages to the pools' queues
            return
        is_due = bool(self._several) and time.monotonic() >= self._reviewed_s + self._review_s
        if is_due:
            async with self._database.transaction() as tx:
                steps = await asked.running_steps(tx.connection, {pool for _, pool in self._replicas}, STEPS)
            self._means, self._typical = await asyncio.to_thread(_means, steps)
        async with self._database.transaction() as tx:
            await rows.note_readers(tx.connection, {replica for report in reports for replica in self._readers(report)})
            if self._several:
                ready = await rows.ready_replicas(tx.connection)
                self._ready_s |= dict.fromkeys(ready, time.monotonic())
                is_wanted = is_due or await rows.any_homeless(tx.connection, self._several)
                if is_wanted and await rows.has_lock(tx.connection, HOMES_LOCK):
                    await self._review(tx, ready, for_gains=is_due)
        if is_due:
            self._reviewed_s = time.monotonic()

    def _readers(self, report: ReplicaReport) -> list[Replica]:
        """Whose queue a process has to itself. One that reads an earlier pools file may name others yet."""
        key = (report.service, report.pool or "")
        names = self._replicas[key] if key in self._several else ()
        return [Replica(*key, name) for name in names if report.busy.get(f"{OWN_QUEUE}@{name}")]

    async def _review(self, tx: Transaction, ready: Collection[Replica], *, for_gains: bool) -> None:
        found = await rows.live_tasks(tx.connection, {pool for _, pool in self._replicas}, STEPS)
        keys = [self._keyed(one, key, ready, for_gains=for_gains) for one in found for key in self._replicas if key[1] == one.pool]
        for move in sorted(homes(keys), key=lambda one: one.keyed.key):  # locked in the order in which others lock them
            task, service = move.keyed.key, move.keyed.pool[0]
            home = await rows.settle(tx.connection, task, service, move.replica, self._now_s())
            if home is not None:
                where = {"replica": home.replica, "before": home.before, "from_version": home.version}
                log.info("task_moved", task=task, service=service, why=str(move.why), **where)

    def _keyed(self, one: LiveTask, key: tuple[str, str], ready: Collection[Replica], *, for_gains: bool) -> Keyed:
        """What a task needs of a home in one service and pool. A single replica is its home: its load counts there."""
        service, names = key[0], self._replicas[key]
        mean = self._means.get(one.task, self._typical)
        if len(names) == 1:
            return Keyed("task", one.task, key, tuple(names), mean.load(service), 0.0, names[0])
        home = one.homes.get(service)
        may_serve = [name for name in names if Replica(*key, name) in ready]
        if home is not None and home.replica in names and self._is_awaited(Replica(*key, home.replica)):
            may_serve.append(home.replica)
        stays = not for_gains or (home is not None and self._is_settling(one, home))
        at = home.replica if home is not None else None
        left_s = mean.busy_s(service) * one.steps_left
        return Keyed("task", one.task, key, tuple(may_serve), mean.load(service), left_s, at, _move_s(one, service), stays)

    def _is_awaited(self, replica: Replica) -> bool:
        return time.monotonic() - self._ready_s.get(replica, self._began_s) < self._lost_s

    def _is_settling(self, one: LiveTask, home: Home) -> bool:
        return home.version > one.version or self._now_s() - home.since_s < STAYS_S


@dataclass(frozen=True)
class _Mean:
    """Seconds of a mean step."""

    sampled_s: float
    trained_s: float
    environment_s: float

    def busy_s(self, service: str) -> float:
        return self.trained_s if service == "trainer" else self.sampled_s

    def load(self, service: str) -> float:
        whole_s = self.sampled_s + self.trained_s + self.environment_s
        return self.busy_s(service) / whole_s if whole_s else 0.0


def _means(found: asked.StepRows) -> tuple[dict[str, _Mean], _Mean]:
    """By task, and of all that have trained a step."""
    steps = asked.phases_of(found)
    return {task: _mean(each) for task, each in steps.items()}, _mean([one for each in steps.values() for one in each] or [UNKNOWN])


def _mean(steps: Sequence[StepPhases]) -> _Mean:
    trained_s = fmean(one.train_s + one.score_s for one in steps)
    return _Mean(fmean(one.generate_s for one in steps), trained_s, fmean(one.environment_s for one in steps))


def _move_s(one: LiveTask, service: str) -> float:
    """Seconds that a move costs: of its state's restoration lately, or by bytes. Prefixes are lost with each version anyway."""
    size_bytes = one.checkpoint_bytes if service == "trainer" else one.adapter_bytes
    return max(one.restore_s if service == "trainer" else 0.0, MOVE_S + size_bytes / BYTES_PER_S)
