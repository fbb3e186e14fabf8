"""Deletes from NATS what no step needs any more: soon after each step what is known to be old, and now and then all of it.

The sweep is for what the first cannot see: messages that arrived after their task had ended, blobs of steps that were
computed twice, and whatever a stop or a crash kept from being cleaned. PostgreSQL says what is needed; nothing else is asked.

A blob of version v of a task is needed when
- a trained step names it and the task keeps it (`retention.py`);
- it is an adapter that another task started from, for as long as that is known;
- the task is live and v is the version it is about to reach: the step's announcement may be on its way.
"""

import asyncio
import re
from collections import defaultdict, deque
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.blobs import Blobs
from common.bus import Bus
from common.cancellation import notice_cancellation
from common.errors import MarlaasError, Retry
from common.messages import BlobRef
from scheduler_svc.database import Database
from scheduler_svc.queries import evaluations, steps, tasks
from scheduler_svc.queries.steps import StepBlob
from scheduler_svc.queries.tasks import Task
from scheduler_svc.retention import Kept

BLOB_NAME = re.compile(r"(?P<task>[a-z0-9-]+)\.v(?P<version>\d+)\.(adapter|checkpoint|batch)-[0-9a-f]+")

SPACING_S = 0.5
"""Between looks at what steps have made old: one look serves all that were taken meanwhile, and no step waits for it."""
MOST_NOTED = 1000
"""Steps that may wait for such a look while NATS is slow to delete; what older ones left is the sweep's."""

log = structlog.get_logger()


@dataclass(frozen=True)
class NeededBlobs:
    """Of one task."""

    live: bool
    version: int
    kept: Mapping[str, BlobRef]
    """By name."""

    def include(self, name: str, version: int) -> bool:
        return name in self.kept or (self.live and version > self.version)


class Cleaner:
    """Idempotent, so that every replica may sweep."""

    def __init__(self, database: Database, bus: Bus, sweep_s: float) -> None:
        self._database = database
        self._bus = bus
        self._blobs = Blobs(bus)
        self._sweep_s = sweep_s
        self._advanced: deque[Task] = deque(maxlen=MOST_NOTED)
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Clean after steps, and sweep now and then, until cancelled."""
        async with asyncio.TaskGroup() as runners:
            runners.create_task(self._follow_steps())
            runners.create_task(self._sweep_now_and_then())

    def note(self, advanced: Sequence[Task]) -> None:
        """Steps have left these tasks as they are here."""
        self._advanced.extend(advanced)
        self._woken.set()

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
                postponed("cleaning_postponed", error)
            await asyncio.sleep(SPACING_S)

    async def _sweep_now_and_then(self) -> None:
        while True:
            notice_cancellation()
            await asyncio.sleep(self._sweep_s)
            try:
                await self.sweep()
            except Exception as error:
                postponed("cleaning_postponed", error)

    async def after_steps(self, advanced: Sequence[Task]) -> None:
        """Delete the scored messages and the blobs that steps have made old; a task is there once for each step.

        Raises: Retry when PostgreSQL is away.
        """
        # Before PostgreSQL is asked: what was settled after that could be needed, and older than what it knew to be.
        settled = await self._settled()
        async with self._database.transaction() as connection:
            old = await grown_old(connection, advanced)
            needed = await steps.first_needed_sequences(connection, [task.id for task in advanced if task.is_live])
        for task in {task.id: task for task in advanced}.values():
            if not task.is_live:
                await self.purge(task.id)
            elif task.id in needed and settled:
                before = min(needed[task.id], settled + 1)
                await _quietly(self._bus.purge(streams.SCORED, f"trajectories.scored.{task.id}.>", before=before))
        for name in old:
            await _quietly(self._blobs.delete(name))

    async def _settled(self) -> int:
        """The sequence up to which every scored message was settled; 0 where that is not known.

        Not all below one that was: another replica may have an older one in hand, or have died or stopped with it.
        """
        try:
            return await self._bus.acknowledged(streams.SCHEDULER_SCORED)
        except Retry as error:
            log.warning("cleaning_postponed", error=str(error))
            return 0

    async def purge(self, task: str) -> None:
        """Delete every message of a task that has ended."""
        for stream, subject in streams.in_flight(task):
            await _quietly(self._bus.purge(stream, subject))

    async def sweep(self) -> None:
        """Raises: Retry when NATS or PostgreSQL is away."""
        await self._sweep_messages()
        await self._sweep_blobs()

    async def _sweep_messages(self) -> None:
        """Messages of tasks that have ended, or that never were: a task is written before its first message."""
        for stream in streams.IN_FLIGHT:
            subjects = await self._bus.subjects(stream)
            async with self._database.transaction() as connection:
                live = await tasks.live_tasks(connection)
            for subject in [subject for subject in subjects if streams.task_of(subject) not in live]:
                log.info("messages_swept", subject=subject, messages=subjects[subject])
                await self._bus.purge(stream, subject)

    async def _sweep_blobs(self) -> None:
        versions: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for name in await self._blobs.names():  # listed first: a step that names one by then is found below
            if found := BLOB_NAME.fullmatch(name):
                versions[found["task"]].append((name, int(found["version"])))
        for task, blobs in versions.items():
            async with self._database.transaction() as connection:
                needed = await needed_blobs(connection, task)
            if needed is None:  # perhaps another database's: a person must look
                continue
            for name in [name for name, version in blobs if not needed.include(name, version)]:
                log.info("blob_swept", task=task, blob=name)
                await self._blobs.delete(name)


async def needed_blobs(connection: AsyncConnection, task: str) -> NeededBlobs | None:
    """What must be kept of a task's blobs; None for a task that is not known."""
    found = await tasks.find_task(connection, task)
    if found is None:
        return None
    kept = await _kept(connection, found)
    blobs = await steps.blobs_of_steps(connection, task)
    started = await tasks.started_from(connection, task)
    needed = {blob.ref.name: blob.ref for blob in blobs if _is_kept(blob, kept) or blob.ref.name in started}
    return NeededBlobs(found.is_live, found.version, needed)


async def grown_old(connection: AsyncConnection, advanced: Sequence[Task]) -> list[str]:
    """Blobs that the newest steps of these tasks have made unneeded, each once; a task is there once for each step."""
    looks: list[tuple[str, Kept, set[int]]] = []
    for task in advanced:
        kept = await _kept(connection, task)
        looks.append((task.id, kept, set(kept.grown_old())))
    blobs = await steps.blobs_of_versions(connection, {(task, version) for task, _, passed in looks for version in passed})
    aged: dict[str, list[StepBlob]] = defaultdict(list)
    for task, kept, passed in looks:
        aged[task] += [blob for blob in blobs.get(task, []) if blob.version in passed and not _is_kept(blob, kept)]
    names: dict[str, None] = {}
    for task, old in aged.items():
        started = await tasks.started_from(connection, task) if any(blob.kind == "adapter" for blob in old) else set[str]()
        names |= dict.fromkeys(blob.ref.name for blob in old if blob.ref.name not in started)
    return list(names)


async def _kept(connection: AsyncConnection, task: Task) -> Kept:
    is_evaluated = task.spec.evaluation.every > 0
    held = await evaluations.held_versions(connection, task.id, task.spec.keep.best) if is_evaluated else frozenset[int]()
    return Kept(task.spec, task.version, held)


def _is_kept(blob: StepBlob, kept: Kept) -> bool:
    match blob.kind:
        case "adapter":
            return kept.has_adapter(blob.version)
        case "checkpoint":
            return kept.has_checkpoint(blob.version)
        case "batch":
            return kept.has_batch(blob.version)


def postponed(event: str, error: Exception) -> None:
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
