"""Deletes from NATS what no step needs any more: soon after each step what is known to be old, and now and then all of it.

The sweep is for what the first cannot see: messages that arrived after their task had ended, blobs of steps that were
computed twice, and whatever a stop or a crash kept from being cleaned. PostgreSQL says what is needed; nothing else is asked.

A blob of version v of a task is needed when
- a trained step names it and the task keeps it (`decisions/retention.py`);
- it is an adapter that another task started from, for as long as that is known, also when the task itself was deleted;
- the task is live and v is the version it is about to reach: the step's announcement may be on its way.

Nothing becomes needed again after that was read: a task can only start from what its source, which it locks, keeps; and a task that
is deleted locks its source too (`handlers/deletion.py`), so that another one cannot rely on it at that moment.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.blobs import BLOB_NAME, Blobs, StoredBlob
from common.bus import Bus
from common.cancellation import notice_cancellation
from common.errors import MarlaasError, Retry
from common.messages import BlobRef
from common.periodic import run_periodically
from scheduler_svc.decisions.retention import RetentionWindow
from scheduler_svc.store.database import Database
from scheduler_svc.store.queries import deleted, evaluations, steps, tasks
from scheduler_svc.store.queries import storage as stored_blobs
from scheduler_svc.store.queries.steps import StepBlob
from scheduler_svc.store.queries.tasks import Task

SPACING_S = 0.5
"""Between looks at what steps have made old: one look serves all that were taken meanwhile, and no step waits for it."""
POSTPONED_S = 2.0
"""After an error, until what deleted tasks left in NATS is looked at again."""
MAX_PENDING_STEPS = 1000
"""Steps that may wait for such a look while NATS is slow to delete; what older ones left is the sweep's."""

log = structlog.get_logger()


@dataclass(frozen=True)
class NeededBlobs:
    """Of one task."""

    tenant: str
    live: bool
    version: int
    kept: Mapping[str, BlobRef]
    """By name."""

    def include(self, name: str, version: int) -> bool:
        return name in self.kept or (self.live and version > self.version)


class GarbageCollector:
    """Idempotent, so that every replica may sweep."""

    def __init__(self, database: Database, bus: Bus, sweep_s: float, erased: Callable[[], None] = lambda: None) -> None:
        """`erased` is called when the end of deleted tasks is to be published."""
        self._erased = erased
        self._database = database
        self._bus = bus
        self._blobs = Blobs(bus)
        self._sweep_s = sweep_s
        self._advanced: deque[Task] = deque(maxlen=MAX_PENDING_STEPS)
        self._woken = asyncio.Event()
        self._deleted = asyncio.Event()
        self._deleted.set()

    async def run(self) -> None:
        """Clean after steps, and sweep periodically, until cancelled."""
        async with asyncio.TaskGroup() as runners:
            runners.create_task(self._follow_steps())
            runners.create_task(self._follow_deletions())
            runners.create_task(run_periodically(self.sweep, self._sweep_s, partial(log_postponed, "cleaning_postponed")))

    def enqueue(self, advanced: Sequence[Task]) -> None:
        """Steps have left these tasks as they are here."""
        self._advanced.extend(advanced)
        self._woken.set()

    def enqueue_deletion(self) -> None:
        """A task was deleted, and NATS still holds its messages and blobs."""
        self._deleted.set()

    async def _follow_deletions(self) -> None:
        while True:
            notice_cancellation()
            await self._deleted.wait()
            self._deleted.clear()
            try:
                await self.erase_deleted()
            except Exception as error:
                log_postponed("cleaning_postponed", error)
                self._deleted.set()
                await asyncio.sleep(POSTPONED_S)

    async def _follow_steps(self) -> None:
        while True:
            notice_cancellation()
            await self._woken.wait()
            self._woken.clear()
            advanced = list(self._advanced)
            self._advanced.clear()
            try:
                await self.after_steps(advanced)
            except Exception as error:  # the task's next step or the sweep finds it
                log_postponed("cleaning_postponed", error)
            await asyncio.sleep(SPACING_S)

    async def after_steps(self, advanced: Sequence[Task]) -> None:
        """Delete the scored messages and the blobs that steps have made old; a task is there once for each step.

        Raises: Retry when PostgreSQL is away.
        """
        # Before PostgreSQL is asked: what was settled after that could be needed, and older than what it knew to be.
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
        for name in old:
            await _quietly(self.delete_blob(name))

    async def delete_blob(self, name: str) -> None:
        """Raises: Retry when NATS or PostgreSQL is away."""
        await self._blobs.delete(name)
        async with self._database.transaction() as tx:
            await stored_blobs.forget_blobs(tx.connection, [name])

    async def _settled(self) -> int:
        """The sequence up to which every scored message was settled; 0 where that is not known.

        Not all below one that was: another replica may have an older one in hand, or have died or stopped with it.
        """
        try:
            return await self._bus.streams.acknowledged(streams.SCHEDULER_SCORED)
        except Retry as error:
            log.warning("cleaning_postponed", error=str(error))
            return 0

    async def purge(self, task: str) -> None:
        """Delete every message of a task that has ended."""
        for stream, subject in streams.in_flight(task):
            await _quietly(self._bus.streams.purge(stream, subject))

    async def erase_deleted(self) -> None:
        """Delete from NATS what deleted tasks left there, and announce each. Raises: Retry when NATS or PostgreSQL is away."""
        async with self._database.transaction() as tx:
            pending = await deleted.pending(tx.connection)
        if not pending:
            return
        stored = await self._blobs_by_task()
        for task in pending:
            freed = await self._erase(task.id, stored.get(task.id, []))
            async with self._database.transaction() as tx:
                if await deleted.erased(tx.connection, task.id, freed):
                    tx.emit_event(task.tenant, task.id, "deleted", {"bytes": freed})
        self._erased()

    async def _erase(self, task: str, stored: Sequence[StoredBlob]) -> int:
        """All that NATS has of a deleted task but what others started from; returns the bytes of its blobs."""
        for stream, subject in (*streams.in_flight(task), *streams.told(task)):
            await self._bus.streams.purge(stream, subject)
        async with self._database.transaction() as tx:
            needed = await needed_blobs(tx.connection, task)
        surplus = [blob for blob in stored if needed is None or blob.name not in needed.kept]
        for blob in surplus:
            await self.delete_blob(blob.name)
        return sum(blob.size_bytes for blob in surplus)

    async def sweep(self) -> None:
        """Raises: Retry when NATS or PostgreSQL is away."""
        await self._sweep_messages()
        for blob in await self.surplus():
            log.info("blob_swept", blob=blob.name)
            await self.delete_blob(blob.name)
        await self._blobs.forget_deleted()
        await self._recount()
        self._deleted.set()

    async def surplus(self, tenant: str | None = None) -> list[StoredBlob]:
        """Blobs that nothing needs any more, of all tasks or of a tenant's. Raises: Retry when NATS or PostgreSQL is away."""
        stored = await self._blobs_by_task()  # listed first: a step that names one by then is found below
        found: list[StoredBlob] = []
        for task, blobs in stored.items():
            async with self._database.transaction() as tx:
                needed = await needed_blobs(tx.connection, task)
            if needed is None or tenant not in (None, needed.tenant):  # unknown: perhaps another database's, a person must look
                continue
            found += [blob for blob in blobs if not needed.include(blob.name, _version_of(blob.name))]
        return found

    async def _blobs_by_task(self) -> dict[str, list[StoredBlob]]:
        by_task: dict[str, list[StoredBlob]] = defaultdict(list)
        for blob in await self._blobs.listed():
            if name := BLOB_NAME.fullmatch(blob.name):
                by_task[name["task"]].append(blob)
        return by_task

    async def _recount(self) -> None:
        """What PostgreSQL counts as stored and no task needs was deleted; a crash may have kept that from being noted."""
        async with self._database.transaction() as tx:
            counted = await stored_blobs.tasks_with_blobs(tx.connection)
        for task in counted:
            async with self._database.transaction() as tx:
                await tasks.lock_tasks(tx.connection, [task])  # no step comes between
                needed = await needed_blobs(tx.connection, task)
                await stored_blobs.forget_others(tx.connection, task, list(needed.kept) if needed else [])

    async def _sweep_messages(self) -> None:
        """Messages of tasks that have ended, or that never were, as a task is written before its first message; and what was announced
        of deleted ones, which a trainer may still have had under way."""
        for stream in streams.IN_FLIGHT:
            subjects = await self._bus.streams.subjects(stream)
            async with self._database.transaction() as tx:
                live = await tasks.live_tasks(tx.connection)
            await self._purge_subjects(stream, {name: count for name, count in subjects.items() if streams.task_of(name) not in live})
        announced = await self._bus.streams.subjects(streams.WEIGHTS)
        async with self._database.transaction() as tx:
            known = {name: streams.token(name, 2) or "" for name in announced}
            gone = await deleted.deleted_among(tx.connection, set(known.values()))
        await self._purge_subjects(streams.WEIGHTS, {name: count for name, count in announced.items() if known[name] in gone})

    async def _purge_subjects(self, stream: streams.Stream, subjects: Mapping[str, int]) -> None:
        for subject, count in subjects.items():
            log.info("messages_swept", subject=subject, messages=count)
            await self._bus.streams.purge(stream, subject)


async def needed_blobs(connection: AsyncConnection, task: str) -> NeededBlobs | None:
    """What must be kept of a task's blobs; None for a task that there never was."""
    found = await tasks.find_task(connection, task)
    if found is None:
        gone = await deleted.find(connection, task)
        return NeededBlobs(gone.tenant, live=False, version=0, kept=await tasks.started_from(connection, task)) if gone else None
    blobs = await steps.blobs_of_steps(connection, task)
    kept = (await _kept(connection, found)).with_lineages(_since(blobs))
    needed = {blob.ref.name: blob.ref for blob in blobs if _is_kept(blob, kept)}
    # Last: a task that started from this one before this one was deleted is found here, where the steps above are gone already.
    return NeededBlobs(found.tenant, found.is_live, found.version, needed | await tasks.started_from(connection, task))


async def superseded_blobs(connection: AsyncConnection, advanced: Sequence[Task]) -> list[str]:
    """Blobs that the newest steps of these tasks have made unneeded, each once; a task is there once for each step."""
    looks: list[tuple[str, RetentionWindow, set[int]]] = []
    for task in advanced:
        kept = await _kept(connection, task)
        looks.append((task.id, kept, set(kept.superseded_blobs())))
    wanted = {(task, version) for task, kept, passed in looks for version in passed | kept.deciding}
    blobs = await steps.blobs_of_versions(connection, wanted)
    since = {task: _since(found) for task, found in blobs.items()}
    looks = [(task, kept.with_lineages(since[task]), kept.with_recomputed(passed, since[task])) for task, kept, passed in looks]
    if earlier := {(task, version) for task, _, passed in looks for version in passed} - wanted:
        for task, found in (await steps.blobs_of_versions(connection, earlier)).items():
            blobs[task] += found
    aged: dict[str, list[StepBlob]] = defaultdict(list)
    for task, kept, passed in looks:
        aged[task] += [blob for blob in blobs[task] if blob.version in passed and not _is_kept(blob, kept)]
    names: dict[str, None] = {}
    for task, old in aged.items():
        started = await tasks.started_from(connection, task) if any(blob.kind == "adapter" for blob in old) else {}
        names |= dict.fromkeys(blob.ref.name for blob in old if blob.ref.name not in started)
    return list(names)


async def _kept(connection: AsyncConnection, task: Task) -> RetentionWindow:
    is_evaluated = task.spec.evaluation.every > 0
    held = await evaluations.held_versions(connection, task.id, task.spec.keep.best) if is_evaluated else frozenset[int]()
    return RetentionWindow(task.spec, task.version, held)


def _since(blobs: Sequence[StepBlob]) -> dict[int, int]:
    """From which version each checkpoint without a state is recomputed."""
    return {blob.version: blob.since for blob in blobs if blob.since is not None}


def _is_kept(blob: StepBlob, kept: RetentionWindow) -> bool:
    match blob.kind:
        case "adapter":
            return kept.has_adapter(blob.version)
        case "checkpoint":
            return kept.has_checkpoint(blob.version)
        case "batch":
            return kept.has_batch(blob.version)


def _version_of(name: str) -> int:
    found = BLOB_NAME.fullmatch(name)
    assert found is not None
    return int(found["version"])


def log_postponed(event: str, error: Exception) -> None:
    """Say that a round of work that comes again was not done: of one task's rows that are not as they should be the others know nothing.

    With a traceback where it is nothing that was expected.
    """
    if isinstance(error, MarlaasError):
        log.warning(event, error=str(error))
    else:
        log.exception(event, error=f"{type(error).__name__}: {error}")


async def _quietly(cleaning: Awaitable[None]) -> None:
    try:
        await cleaning
    except Retry as error:
        log.warning("cleaning_postponed", error=str(error))
