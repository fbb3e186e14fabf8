"""Rows of stored blobs and of the store alarm; blobs that tasks need, and blobs that steps have superseded.

A blob of version v of a task is needed if

- a trained step names it, the task keeps it, and its tenant's days have not passed (`decisions/` of training and tenancy);
- it is an adapter that another existing task started from, even if the task itself was deleted;
- it is an adapter that an alias names;
- the task is live and v is its next version: the step's announcement may be in flight.

A superseded blob stays superseded: a new task can only start from an adapter that its source keeps, an alias can only name such a version,
and both lock the source. A task's deletion locks the source too (`upkeep/deletion/deletion.py`): no other task can start from it meanwhile.

The store alarm is an event to every live task before the store is full, and another when there is room. A full store refuses only adapters
and checkpoints (`MARLAAS_NATS_BLOBS_BYTES`): trainers hold their steps, and resume by themselves. Messages still pass, so `marlaas prune`
and `marlaas delete` work.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue
from sqlalchemy import delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from common.blobs import BLOB_NAME, ROOM, StoreUsage
from common.messages import BlobRef
from scheduler_svc.base import deleted
from scheduler_svc.base.database import Database
from scheduler_svc.base.sql import Statement, any_of
from scheduler_svc.base.states import LIVE
from scheduler_svc.base.tables import store_alarm, stored_blobs, tasks
from scheduler_svc.training.aliases import held_by_others
from scheduler_svc.training.decisions.retention import RetentionWindow
from scheduler_svc.training.queries import evaluations, steps
from scheduler_svc.training.queries.steps import StepBlob
from scheduler_svc.training.queries.tasks import Task, find_task, live_tasks, tenants_of


async def bytes_of(connection: AsyncConnection, ids: Collection[str]) -> Mapping[str, int]:
    """Bytes of the tasks' blobs in the store, by task; 0 for tasks without any."""
    statement = select(stored_blobs.c.task, func.sum(stored_blobs.c.bytes)).where(stored_blobs.c.task.in_(ids))
    found = {task: int(size) for task, size in (await connection.execute(statement.group_by(stored_blobs.c.task))).all()}
    return {task: found.get(task, 0) for task in ids}


_FORGET = Statement(delete(stored_blobs).where(stored_blobs.c.name == any_of("names")))


async def forget_blobs(connection: AsyncConnection, names: Sequence[str]) -> None:
    """Delete the rows of these blobs."""
    await _FORGET.run(connection, {"names": list(names)})


async def forget_others(connection: AsyncConnection, task: str, kept: Collection[str]) -> None:
    """Delete the rows of all the task's blobs except `kept`."""
    await connection.execute(delete(stored_blobs).where(stored_blobs.c.task == task, stored_blobs.c.name.not_in(kept)))


async def tasks_with_blobs(connection: AsyncConnection) -> set[str]:
    return set((await connection.execute(select(stored_blobs.c.task).distinct())).scalars())


async def largest_version(connection: AsyncConnection) -> int:
    """Bytes of the largest stored version of any live task, adapter and checkpoint together."""
    live = stored_blobs.join(tasks, tasks.c.id == stored_blobs.c.task)
    sizes = select(func.sum(stored_blobs.c.bytes).label("size")).select_from(live).where(tasks.c.state.in_(LIVE))
    versions = sizes.group_by(stored_blobs.c.task, stored_blobs.c.version).subquery()
    return int((await connection.execute(select(func.coalesce(func.max(versions.c.size), 0)))).scalar_one())


async def alarm(connection: AsyncConnection) -> bool:
    """Whether the store alarm is raised."""
    return bool((await connection.execute(select(store_alarm.c.raised))).scalar_one())


async def set_alarm(connection: AsyncConnection, *, raised: bool) -> bool:
    """Raise or clear the alarm; False if another replica already did."""
    statement = update(store_alarm).where(store_alarm.c.raised != raised).values(raised=raised, since=func.now())
    return (await connection.execute(statement.returning(store_alarm.c.raised))).first() is not None


EXPIRED = {"adapter": "adapters", "checkpoint": "checkpoints", "batch": "batches"}
"""Kind of blob → kind of data in a tenant's retention settings."""


@dataclass(frozen=True)
class NeededBlobs:
    """Blobs of one task that must be kept."""

    tenant: str
    live: bool
    version: int
    kept: Mapping[str, BlobRef]
    """Kept blobs by name."""

    def include(self, name: str, version: int) -> bool:
        return name in self.kept or (self.live and version > self.version)


async def needed_blobs(connection: AsyncConnection, task: str) -> NeededBlobs | None:
    """Blobs of a task that must be kept; None for an unknown task."""
    found = await find_task(connection, task)
    if found is None:
        gone = await deleted.find(connection, task)
        return NeededBlobs(gone.tenant, live=False, version=0, kept=await held_by_others(connection, task)) if gone else None
    blobs = await steps.blobs_of_steps(connection, task)
    kept = (await _kept(connection, found)).with_lineages(_since(blobs))
    needed = {blob.ref.name: blob.ref for blob in blobs if _is_kept(blob, kept) and EXPIRED[blob.kind] not in found.expired}
    # Read last: finds tasks that started from this one before its deletion, even if the steps above are already gone.
    return NeededBlobs(found.tenant, found.is_live, found.version, needed | await held_by_others(connection, task))


async def superseded_blobs(connection: AsyncConnection, advanced: Sequence[Task]) -> list[str]:
    """Names of the blobs superseded by the newest steps of these tasks; `advanced`: one entry per step."""
    windows: list[tuple[str, RetentionWindow, set[int]]] = []
    for task in advanced:
        kept = await _kept(connection, task)
        windows.append((task.id, kept, set(kept.superseded_blobs())))
    wanted = {(task, version) for task, kept, passed in windows for version in passed | kept.deciding}
    blobs = await steps.blobs_of_versions(connection, wanted)
    since = {task: _since(found) for task, found in blobs.items()}
    windows = [(task, kept.with_lineages(since[task]), kept.with_recomputed(passed, since[task])) for task, kept, passed in windows]
    if earlier := {(task, version) for task, _, passed in windows for version in passed} - wanted:
        for task, found in (await steps.blobs_of_versions(connection, earlier)).items():
            blobs[task] += found
    old = [(task, blob) for task, kept, passed in windows for blob in blobs[task] if blob.version in passed and not _is_kept(blob, kept)]
    held = await held_by_others(connection, *{task for task, blob in old if blob.kind == "adapter"})
    return list(dict.fromkeys(blob.ref.name for _, blob in old if blob.ref.name not in held))


async def _kept(connection: AsyncConnection, task: Task) -> RetentionWindow:
    is_evaluated = task.spec.evaluation.every > 0
    held = await evaluations.held_versions(connection, task.id, task.spec) if is_evaluated else frozenset[int]()
    return RetentionWindow(task.spec, task.version, held)


def _since(blobs: Sequence[StepBlob]) -> dict[int, int]:
    """Version from which each checkpoint without a stored state is recomputed, by version."""
    return {blob.version: blob.since for blob in blobs if blob.since is not None}


def _is_kept(blob: StepBlob, kept: RetentionWindow) -> bool:
    match blob.kind:
        case "adapter":
            return kept.has_adapter(blob.version)
        case "checkpoint":
            return kept.has_checkpoint(blob.version)
        case "batch":
            return kept.has_batch(blob.version)


def version_of(name: str) -> int:
    found = BLOB_NAME.fullmatch(name)
    assert found is not None
    return int(found["version"])


CLEARED_BELOW = 0.9
"""Fraction of the threshold below which the alarm is cleared: a single threshold would toggle the alarm with each step."""


def is_alarming(usage: StoreUsage, *, threshold: float, next_bytes: int, raised: bool) -> bool:
    """Whether the alarm should be raised: by the used share, or because the largest version would not fit.

    `next_bytes`: size of the largest version of any live task.
    """
    if usage.limit_bytes is None:
        return False
    if raised:
        threshold, next_bytes = threshold * CLEARED_BELOW, 2 * next_bytes
    return usage.share >= threshold or usage.limit_bytes - usage.used_bytes < next_bytes


async def update_alarm(database: Database, usage: StoreUsage, threshold: float) -> bool:
    """Raise or clear the alarm; True if its state changed. Raises: Retry if PostgreSQL is unavailable."""
    async with database.transaction() as tx:
        raised = await alarm(tx.connection)
        next_bytes = await largest_version(tx.connection)
        wanted = is_alarming(usage, threshold=threshold, next_bytes=next_bytes, raised=raised)
        if wanted == raised or not await set_alarm(tx.connection, raised=wanted):
            return False
        live = sorted(await live_tasks(tx.connection))
        sizes = await bytes_of(tx.connection, live)
        tenants = await tenants_of(tx.connection, live)
        for task in live:
            data: dict[str, JsonValue] = {
                "raised": wanted,
                "used_bytes": usage.used_bytes,
                "limit_bytes": usage.limit_bytes,
                "share": round(usage.share, 4),
                "threshold": threshold,
                "task_bytes": sizes[task],
                "reason": sentence(usage, threshold, raised=wanted),
            }
            tx.emit_event(tenants[task], task, "storage", data)
        return True


def sentence(usage: StoreUsage, threshold: float, *, raised: bool) -> str:
    """The alarm's text in events."""
    full = f"the blob store has {usage.used_bytes} of {usage.limit_bytes} bytes, {usage.share:.0%}"
    if not raised:
        return f"{full}: there is room"
    return f"{full} (the alarm is at {threshold:.0%}); once it is full no step can be stored: {ROOM}"
