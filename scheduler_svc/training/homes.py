"""Homes: in a pool with several named replicas, each task is assigned one sampler and one trainer, where its state is warm.

A named replica has a queue of its own beside the pool's; the table `executors` records which replicas' queues are read (docs/pools.md).
One scheduler replica at a time reviews homes. A task gets its homes when it is submitted. It gets another if its home cannot serve for
LOST_S, and otherwise only for a gain above the cost of the move (`decisions/homes.py`). Messages for a home that cannot serve go to the
pool's queue. If no pool has several replicas, no statement is run.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import structlog
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.homes import OWN_QUEUE
from common.messages import ReplicaReport, StepPhases
from common.messages.prompts import FIRST_EVALUATION_GROUP
from scheduler_svc.accelerators import asked
from scheduler_svc.base.database import HOMES_LOCK, Database
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.training.decisions.homes import Keyed, homes
from scheduler_svc.training.queries.tasks import Home, Task, homes_of


class Replica(NamedTuple):
    service: str
    pool: str
    name: str


_READY = text("SELECT service, pool, accelerator FROM executors WHERE has_queue AND faults = 0 AND (held IS NULL OR held = 'wake')")


async def ready_replicas(connection: AsyncConnection) -> set[Replica]:
    """Replicas that read a queue of their own, are not faulty, and are not held by an operator."""
    return {Replica(*row) for row in (await connection.execute(_READY)).all()}


_NOTE = text("""
UPDATE executors SET has_queue = NOT has_queue WHERE has_queue <> ((service, pool, accelerator) IN (
    SELECT * FROM unnest(CAST(:services AS text[]), CAST(:pools AS text[]), CAST(:names AS text[]))))
""")


async def note_readers(connection: AsyncConnection, reading: Collection[Replica]) -> None:
    """Record in `executors` that exactly the replicas in `reading` read queues of their own."""
    services, pools, names = zip(*sorted(reading), strict=True) if reading else ((), (), ())
    await connection.execute(_NOTE, {"services": [*services], "pools": [*pools], "names": [*names]})


async def reachable_homes(connection: AsyncConnection, tasks: Collection[Task], service: str) -> dict[str, str]:
    """Names of the homes for the tasks' current versions, by task; omits tasks that have no home, or none that is ready."""
    homes = {task.id: Replica(service, task.spec.pool, name) for task in tasks if (name := _home(task, service)) is not None}
    ready = await ready_replicas(connection) if homes else set[Replica]()
    return {task: home.name for task, home in homes.items() if home in ready}


def _home(task: Task, service: str) -> str | None:
    home = task.homes.get(service)
    return home.at(task.version) if home is not None else None


async def has_lock(connection: AsyncConnection, lock: int) -> bool:
    """Take the advisory lock until the transaction ends; False if another transaction holds it."""
    return bool((await connection.execute(text("SELECT pg_try_advisory_xact_lock(:lock)"), {"lock": lock})).scalar_one())


@dataclass(frozen=True)
class LiveTask:
    """A submitted or running task, with sizes and times that bound the cost of a move."""

    task: str
    pool: str
    version: int
    steps_left: int
    homes: Mapping[str, Home]
    adapter_bytes: int
    checkpoint_bytes: int
    restore_s: float
    """Maximum seconds of restoring its state in its latest steps; about 0 if it was never restored."""


_LIVE = text("""
SELECT t.id, t.pool, t.version, t.steps, t.homes, coalesce((t.adapter -> 'blob' ->> 'size_bytes')::bigint, 0) AS adapter_bytes,
       coalesce((t.checkpoint ->> 'size_bytes')::bigint, 0) AS checkpoint_bytes,
       coalesce((SELECT max((s.metrics ->> 'restore_s')::float8) FROM steps s
                 WHERE s.task = t.id AND s.state = 'trained' AND s.version >= t.version - :most), 0) AS restore_s
FROM tasks t WHERE t.state IN ('submitted', 'running') AND t.pool = ANY(CAST(:pools AS text[])) ORDER BY t.id
""")


async def live_tasks(connection: AsyncConnection, pools: Collection[str], most: int) -> list[LiveTask]:
    """Submitted and running tasks of these pools, by id. `most`: number of latest steps considered for `restore_s`."""
    rows = (await connection.execute(_LIVE, {"pools": sorted(pools), "most": most})).all()
    return [
        LiveTask(
            *(row.id, row.pool, row.version, max(1, row.steps - row.version), homes_of(row.homes)),
            *(row.adapter_bytes, row.checkpoint_bytes, float(row.restore_s)),
        )
        for row in rows
    ]


_HOMELESS = text("""
SELECT EXISTS (SELECT FROM tasks t JOIN unnest(CAST(:services AS text[]), CAST(:pools AS text[])) k (service, pool) ON k.pool = t.pool
               WHERE t.state IN ('submitted', 'running') AND (t.homes -> k.service) IS NULL)
""")


async def any_homeless(connection: AsyncConnection, keys: Collection[tuple[str, str]]) -> bool:
    """Whether a live task has no home yet. `keys`: (service, pool) pairs with several replicas."""
    given = {"services": [service for service, _ in keys], "pools": [pool for _, pool in keys]}
    return bool((await connection.execute(_HOMELESS, given)).scalar_one())


# A statement that waits for a task's row does not see groups that were opened meanwhile, so it waits before.
_HOLD = text("SELECT FROM tasks WHERE id = :task FOR UPDATE")

# A version whose work has begun at the old home ends there: groups pin their version, and a step's batch is in one queue.
_SETTLE = text(f"""
UPDATE tasks t SET homes = coalesce(t.homes, '{{}}') || jsonb_build_object(CAST(:service AS text), jsonb_build_object(
    'replica', CAST(:replica AS text),
    'version', t.version + CASE WHEN CAST(:service AS text) = 'trainer'
        THEN EXISTS (SELECT FROM steps s WHERE s.task = t.id AND s.version = t.version)::int
        ELSE coalesce((SELECT g.version = t.version FROM groups g WHERE g.task = t.id AND g.number < {FIRST_EVALUATION_GROUP}
                       ORDER BY g.number DESC LIMIT 1)::int, 0) END,
    'before', CASE WHEN (t.homes -> CAST(:service AS text) ->> 'version')::int > t.version
                   THEN t.homes -> CAST(:service AS text) ->> 'before' ELSE t.homes -> CAST(:service AS text) ->> 'replica' END,
    'since_s', CAST(:now_s AS float8)))
WHERE t.id = :task AND t.state IN ('submitted', 'running') RETURNING t.homes
""")


async def settle(connection: AsyncConnection, task: str, service: str, replica: str, now_s: float) -> Home | None:
    """Assign a task another home, from its current version if no work of that version was sent, else from the next.

    Returns the home; None if the task has ended.
    """
    given = {"task": task, "service": service, "replica": replica, "now_s": now_s}
    await connection.execute(_HOLD, given)
    row = (await connection.execute(_SETTLE, given)).first()
    return homes_of(row.homes)[service] if row is not None else None


LOOK_S = 1.0
"""Seconds between checks of queue readers and of tasks without a home."""
REVIEW_S = 30.0
"""Seconds between reviews for better homes."""
LOST_S = 60.0
"""Seconds for which a replica cannot serve before tasks leave it: longer than a restart, since tasks do not move back by themselves."""
STAYS_S = 300.0
"""Minimum seconds between a task's moves for a gain: its load at a new home is known after some steps."""
STEPS = 8
"""Latest steps over which a task's load is averaged."""
MOVE_S, BYTES_PER_S = 0.1, 2.0**30
"""Assumed fixed cost of a move in seconds, and transfer rate in bytes per second."""
UNKNOWN = StepPhases(version=1, at_s=0.0, generate_s=1.0, environment_s=1.0, train_s=1.0)
"""Assumed phases of a step before any task has trained one."""

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
        """`replicas`: names by service and pool. `reports`: of live replicas; None until first read. `now_s`: NATS time."""
        self._database = database
        self._replicas = replicas
        self._several = [key for key, names in replicas.items() if len(names) > 1]
        self._reports = reports
        self._now_s = now_s
        self._review_s, self._lost_s = review_s, lost_s
        self._began_s = time.monotonic()
        self._ready_s: dict[Replica, float] = {}
        """Monotonic time at which each replica was last ready."""
        self._reviewed_s = float("-inf")
        self._means, self._typical = _means([])
        """Mean step phases by task, and over all tasks, as of the last review; a task submitted since then has trained no step."""

    @property
    def queues(self) -> frozenset[str]:
        """Queues of single trainers, in pools with several."""
        trainers = [key for key in self._several if key[0] == "trainer"]
        return frozenset(streams.queue(key[1], name) for key in trainers for name in self._replicas[key])

    @property
    def look_s(self) -> float | None:
        """Seconds between calls of `look`; None if no replica has a name, since migration has then cleared all homes.

        If no pool has several replicas, `look` only clears readers recorded under an earlier pools file: otherwise messages for a home
        would go to a queue without a reader.
        """
        if not self._replicas:
            return None
        return LOOK_S if self._several else REVIEW_S

    async def look(self) -> None:
        """Record who reads which queue, assign missing homes, and every REVIEW_S review for better ones. Raises: Unavailable."""
        reports = self._reports() if self._several else []
        if reports is None:  # treated as no reports, it would divert all messages to the pools' queues
            return
        is_due = bool(self._several) and time.monotonic() >= self._reviewed_s + self._review_s
        if is_due:
            async with self._database.transaction() as tx:
                steps = await asked.running_steps(tx.connection, {pool for _, pool in self._replicas}, STEPS)
            self._means, self._typical = await asyncio.to_thread(_means, steps)
        async with self._database.transaction() as tx:
            await note_readers(tx.connection, {replica for report in reports for replica in self._readers(report)})
            if self._several:
                ready = await ready_replicas(tx.connection)
                self._ready_s |= dict.fromkeys(ready, time.monotonic())
                is_wanted = is_due or await any_homeless(tx.connection, self._several)
                if is_wanted and await has_lock(tx.connection, HOMES_LOCK):
                    await self._review(tx, ready, for_gains=is_due)
        if is_due:
            self._reviewed_s = time.monotonic()

    def _readers(self, report: ReplicaReport) -> list[Replica]:
        """Replicas whose own queue the reporting process reads; one with an earlier pools file may still report other names."""
        key = (report.service, report.pool or "")
        names = self._replicas[key] if key in self._several else ()
        return [Replica(*key, name) for name in names if report.busy.get(f"{OWN_QUEUE}@{name}")]

    async def _review(self, tx: Transaction, ready: Collection[Replica], *, for_gains: bool) -> None:
        found = await live_tasks(tx.connection, {pool for _, pool in self._replicas}, STEPS)
        keys = [self._keyed(one, key, ready, for_gains=for_gains) for one in found for key in self._replicas if key[1] == one.pool]
        for move in sorted(homes(keys), key=lambda one: one.keyed.key):  # in the order in which other transactions lock tasks
            task, service = move.keyed.key, move.keyed.pool[0]
            home = await settle(tx.connection, task, service, move.replica, self._now_s())
            if home is not None:
                where = {"replica": home.replica, "before": home.before, "from_version": home.version}
                log.info("task_moved", task=task, service=service, why=str(move.why), **where)

    def _keyed(self, one: LiveTask, key: tuple[str, str], ready: Collection[Replica], *, for_gains: bool) -> Keyed:
        """A task's requirements for its home in one service and pool. A pool's only replica is the home, so that the load counts there."""
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
    """Mean phases of a step, in seconds."""

    sampled_s: float
    trained_s: float
    environment_s: float

    def busy_s(self, service: str) -> float:
        return self.trained_s if service == "trainer" else self.sampled_s

    def load(self, service: str) -> float:
        whole_s = self.sampled_s + self.trained_s + self.environment_s
        return self.busy_s(service) / whole_s if whole_s else 0.0


def _means(found: asked.StepRows) -> tuple[dict[str, _Mean], _Mean]:
    """Mean step phases by task, and over the steps of all tasks."""
    steps = asked.phases_of(found)
    return {task: _mean(each) for task, each in steps.items()}, _mean([one for each in steps.values() for one in each] or [UNKNOWN])


def _mean(steps: Sequence[StepPhases]) -> _Mean:
    trained_s = fmean(one.train_s + one.score_s for one in steps)
    return _Mean(fmean(one.generate_s for one in steps), trained_s, fmean(one.environment_s for one in steps))


def _move_s(one: LiveTask, service: str) -> float:
    """Cost of a move in seconds: recent restore time, or transfer time by size. Prefix caches are lost with each version anyway."""
    size_bytes = one.checkpoint_bytes if service == "trainer" else one.adapter_bytes
    return max(one.restore_s if service == "trainer" else 0.0, MOVE_S + size_bytes / BYTES_PER_S)
