"""Garbage collection in NATS: superseded data after each step, plus a periodic full sweep.

The sweep deletes data that steps cannot see: messages that arrived after their task had ended, blobs of steps that were computed
twice, and deletions lost in a crash. Only PostgreSQL decides what is needed; once a newer version has migrated it, nothing is collected.
`storage.py` defines which blobs are needed.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence

import structlog

from common import streams
from common.blobs import BLOB_NAME, Blobs, StoredBlob
from common.bus import Bus
from common.errors import Retry
from common.periodic import run_forever
from scheduler_svc.base import deleted
from scheduler_svc.base.database import Database
from scheduler_svc.base.samples import StoredSamples
from scheduler_svc.training.queries import steps, tasks
from scheduler_svc.training.queries.tasks import Task
from scheduler_svc.upkeep import outbox
from scheduler_svc.upkeep.deletion import storage as stored_blobs
from scheduler_svc.upkeep.deletion import sweeps
from scheduler_svc.upkeep.deletion.storage import needed_blobs, superseded_blobs, version_of
from scheduler_svc.uploads import package_queries as packages

SPACING_S = 0.5
"""Seconds between collections after steps: each covers all steps since the last, and no step waits for it."""
POSTPONED_S = 2.0
"""Seconds of pause after an error before erasing deleted tasks' data is retried."""
OUTBOX_CHECKS, OUTBOX_PAUSE_S = 100, 0.05
"""Maximum number of checks of the outbox, and seconds between them, before an erasure is postponed."""
MAX_PENDING_STEPS = 1000
"""Maximum steps queued for collection while NATS deletes slowly; the sweep covers dropped ones."""

log = structlog.get_logger()


class GarbageCollector:
    """Collects after steps and deletions, and sweeps. Idempotent, so that every replica may run one."""

    def __init__(self, database: Database, bus: Bus, sweep_s: float, erased: Callable[[], None] = lambda: None) -> None:
        """`erased`: called when events of erased tasks are in the outbox."""
        self._erased = erased
        self._database = database
        self._bus = bus
        self._blobs = Blobs(bus)
        self._samples = StoredSamples(bus)
        self._sweep_s = sweep_s
        self._advanced: deque[Task] = deque(maxlen=MAX_PENDING_STEPS)
        self._woken = asyncio.Event()
        self._deleted = asyncio.Event()

    async def run(self) -> None:
        """Collect after steps and deletions, and sweep periodically, until cancelled."""
        async with asyncio.TaskGroup() as runners:
            runners.create_task(run_forever(self._follow_steps, SPACING_S, "cleaning_postponed"))
            runners.create_task(run_forever(self._erase_when_deleted, POSTPONED_S, "cleaning_postponed"))
            runners.create_task(run_forever(self.sweep, self._sweep_s, "cleaning_postponed", pauses_first=True))

    def enqueue(self, advanced: Sequence[Task]) -> None:
        """Queue tasks that a step has advanced, in their state after the step."""
        self._advanced.extend(advanced)
        self._woken.set()

    def enqueue_deletion(self) -> None:
        """Request erasure of deleted tasks' messages and blobs."""
        self._deleted.set()

    async def _erase_when_deleted(self) -> None:
        while True:
            await self.erase_deleted()
            await self._deleted.wait()
            self._deleted.clear()

    async def _follow_steps(self) -> None:
        """Collect after the steps queued since the last run. If it fails, the tasks' next steps or the sweep collect the rest."""
        await self._woken.wait()
        self._woken.clear()
        advanced = list(self._advanced)
        self._advanced.clear()
        await self.after_steps(advanced)

    async def after_steps(self, advanced: Sequence[Task]) -> None:
        """Delete scored messages and blobs that steps have superseded; `advanced`: one entry per step. Raises: Retry."""
        await self._database.check_schema()
        # Read before PostgreSQL: a message settled in between could be needed, yet be older than PostgreSQL's oldest needed one.
        settled = await self._settled()
        async with self._database.transaction() as tx:
            old = await superseded_blobs(tx.connection, advanced)
            needed = await steps.first_needed_sequences(tx.connection, [task.id for task in advanced if task.is_live])
        for task in {task.id: task for task in advanced}.values():
            if not task.is_live:
                await self.purge(task.id)
            elif task.id in needed and settled:
                before = min(needed[task.id], settled + 1)
                await _quietly(self._bus.streams.purge(streams.SCORED, f"trajectories.scored.{task.id}.>", before=before))
        for task in advanced:
            await _quietly(self._samples.drop_old(task.spec.pool, task.id, task.version))
        await _quietly(self.delete_blobs(old))

    async def delete_blobs(self, names: Sequence[str]) -> None:
        """Delete blobs and their rows. Raises: Retry if NATS or PostgreSQL is unavailable; the sweep deletes the rest, and corrects the
        rows."""
        for name in names:
            await self._blobs.delete(name)
        if names:
            async with self._database.statements() as connection:
                await stored_blobs.forget_blobs(connection, names)

    async def _settled(self) -> int:
        """Stream sequence up to which all scored messages are settled; 0 if unknown.

        A message older than a settled one may be unsettled: another replica may be processing it, or may have died while processing it.
        """
        try:
            return await self._bus.streams.acknowledged(streams.SCHEDULER_SCORED)
        except Retry as error:
            log.warning("cleaning_postponed", error=str(error))
            return 0

    async def purge(self, task: str) -> None:
        """Delete all messages in flight of an ended task."""
        for stream, subject in streams.in_flight(task):
            await _quietly(self._bus.streams.purge(stream, subject))

    async def erase_deleted(self) -> None:
        """Erase deleted tasks' data from NATS and its files, with an event per task. Raises: Retry if a store is unavailable.

        Stored messages are overwritten. Messages that work queues consumed, and replaced statuses, disappear with their files, which are
        freed once for all tasks.
        """
        await self._database.check_schema()
        async with self._database.transaction() as tx:
            pending = await deleted.pending(tx.connection)
        if not pending:
            return
        await self.wait_until_published([task.id for task in pending])
        stored = await self._blobs_by_task()
        freed = {task.id: await self._erase(task.id, stored.get(task.id, [])) for task in pending}
        await self._bus.kv.erase(streams.TASKS_BUCKET, freed.keys())
        for stream in (*streams.IN_FLIGHT, streams.REQUESTS):
            await self._bus.streams.begin_block(stream)
        for task in pending:
            async with self._database.transaction() as tx:
                if await deleted.erased(tx.connection, task.id, freed[task.id]):
                    tx.emit_event(task.tenant, task.id, "deleted", {"bytes": freed[task.id]})
        self._erased()

    async def wait_until_published(self, names: Sequence[str]) -> None:
        """Wait until the outbox has no message about these tasks or tenants, which would be stored after an erasure. Raises: Retry."""
        for _ in range(OUTBOX_CHECKS):
            async with self._database.transaction() as tx:
                if not await outbox.has_messages_about(tx.connection, names):
                    return
            await asyncio.sleep(OUTBOX_PAUSE_S)
        raise Retry(f"messages about {names[0]} are still in the outbox")

    async def _erase(self, task: str, stored: Sequence[StoredBlob]) -> int:
        """Erase a deleted task's messages and blobs, except adapters that others started from; returns the freed bytes."""
        for stream, subject in (*streams.in_flight(task), *streams.stored_reports(task)):
            await self._bus.streams.erase(stream, subject)
        async with self._database.transaction() as tx:
            needed = await needed_blobs(tx.connection, task)
        surplus = [blob for blob in stored if needed is None or blob.name not in needed.kept]
        await self.delete_blobs([blob.name for blob in surplus])
        return sum(blob.size_bytes for blob in surplus)

    async def sweep(self) -> None:
        """Delete all unneeded messages and blobs. Raises: Retry if NATS or PostgreSQL is unavailable."""
        await self._database.check_schema()
        await self._sweep_messages()
        await sweeps.sweep_requests(self._bus, self._database)
        await self._samples.sweep()
        surplus = [blob.name for blob in await self.surplus()]
        for name in surplus:
            log.info("blob_swept", blob=name)
        await self.delete_blobs(surplus)
        await self._blobs.forget_deleted()
        await self._forget_unneeded()
        self._deleted.set()

    async def surplus(self, tenant: str | None = None) -> list[StoredBlob]:
        """Superseded blobs of all tasks, or of one tenant's. Raises: Retry if NATS or PostgreSQL is unavailable."""
        stored = await self._blobs_by_task()  # listed first: a step that names one meanwhile is found below
        found: list[StoredBlob] = []
        for task, blobs in stored.items():
            async with self._database.transaction() as tx:
                needed = await needed_blobs(tx.connection, task)
            if needed is None or tenant not in (None, needed.tenant):  # unknown task, possibly of another database: left to an operator
                continue
            found += [blob for blob in blobs if not needed.include(blob.name, version_of(blob.name))]
        return found

    async def _blobs_by_task(self) -> dict[str, list[StoredBlob]]:
        by_task: dict[str, list[StoredBlob]] = defaultdict(list)
        for blob in await self._blobs.listed():
            if name := BLOB_NAME.fullmatch(blob.name):
                by_task[name["task"]].append(blob)
        return by_task

    async def _forget_unneeded(self) -> None:
        """Delete the rows of unneeded blobs: a crash may have come between the deletion of a blob and that of its row."""
        async with self._database.transaction() as tx:
            counted = await stored_blobs.tasks_with_blobs(tx.connection)
        for task in counted:
            async with self._database.transaction() as tx:
                await tasks.lock_tasks(tx.connection, [task])  # no step can intervene
                needed = await needed_blobs(tx.connection, task)
                await stored_blobs.forget_others(tx.connection, task, list(needed.kept) if needed else [])

    async def _sweep_messages(self) -> None:
        """Purge messages of ended and unknown tasks; erase reports about deleted tasks, which services may have published late.

        A task is inserted before its first message, so an unknown task's messages are obsolete.
        """
        for stream in streams.IN_FLIGHT:
            subjects = await self._bus.streams.subjects(stream)
            async with self._database.transaction() as tx:
                live, in_check = await tasks.live_tasks(tx.connection), await packages.in_check(tx.connection)
            dead = {name for name in subjects if streams.task_of(name) not in live and streams.package_of(name) not in in_check}
            await self._purge_subjects(stream, {name: subjects[name] for name in dead})
        for stream in (streams.WEIGHTS, streams.FAILED, streams.SAMPLES):
            reports = {name: streams.token(name, 2) or "" for name in await self._bus.streams.subjects(stream)}
            async with self._database.transaction() as tx:
                gone = await deleted.deleted_among(tx.connection, set(reports.values()))
            for subject in [name for name, task in reports.items() if task in gone]:
                log.info("messages_swept", subject=subject, messages=await self._bus.streams.erase(stream, subject))

    async def _purge_subjects(self, stream: streams.Stream, subjects: Mapping[str, int]) -> None:
        for subject, count in subjects.items():
            log.info("messages_swept", subject=subject, messages=count)
            await self._bus.streams.purge(stream, subject)


async def _quietly(cleaning: Awaitable[None]) -> None:
    try:
        await cleaning
    except Retry as error:
        log.warning("cleaning_postponed", error=str(error))
