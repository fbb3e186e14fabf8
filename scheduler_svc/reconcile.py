"""Reconciles two stores with diverged histories: `python -m scheduler_svc.reconcile`, with all services stopped.

PostgreSQL decides what was trained. Groups in flight are voided and refilled, since their messages may be lost or
belong to the other history. Versions unknown to PostgreSQL are dropped, and tasks resume from their versions in PostgreSQL.
A task whose checkpoint is missing in NATS is paused, with the reason. Idempotent.
"""

import asyncio
import sys
from dataclasses import dataclass, field

from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.blobs import Blobs
from common.bus import Bus
from common.errors import MarlaasError, Reject
from common.message_consistency import about
from common.messages import DeadLetter, HistoryMark, TaskStatus
from common.runtime.service import connect_bus
from common.runtime.settings import read_or_exit
from common.streams import ALIASES_BUCKET, HISTORY_BUCKET, HTTP_KEYS_BUCKET, TASKS_BUCKET
from common.task_states import ENDED
from scheduler_svc.base.database import RELAY_LOCK, Database
from scheduler_svc.base.states import TaskState, VoidReason
from scheduler_svc.base.transaction import OutboxMessage, Transaction
from scheduler_svc.settings import SchedulerSettings
from scheduler_svc.tenancy import keys
from scheduler_svc.tenancy.keys import post_http_keys
from scheduler_svc.training import aliases
from scheduler_svc.training.queries import groups, steps, tasks
from scheduler_svc.training.queries.tasks import Task
from scheduler_svc.training.results import dead_letters, weight_updates
from scheduler_svc.training.results.dead_letters import concerns_dead_letter
from scheduler_svc.training.task_events import publish_status
from scheduler_svc.training.termination import void_live_groups
from scheduler_svc.upkeep import outbox
from scheduler_svc.uploads import package_queries as packages

DETAIL = "the stores had different histories"


@dataclass
class Reconciliation:
    """Result of a reconciliation."""

    reason: str
    voided: dict[str, int] = field(default_factory=dict[str, int])
    """Task → number of groups in flight that were voided, to be refilled."""
    paused: dict[str, str] = field(default_factory=dict[str, str])
    """Task → reason why it cannot resume."""
    unknown: list[str] = field(default_factory=list[str])
    """Tasks known only to NATS; their owners must resubmit them."""


async def accept(database: Database, bus: Bus) -> Reconciliation | None:
    """Make both stores agree on one history; None if they already do. Raises: Retry if a store is unavailable."""
    reason = await outbox.difference(database, bus)
    if reason is None:
        return None
    done = Reconciliation(reason)
    mark = await bus.kv.get(HISTORY_BUCKET, outbox.HISTORY_KEY, HistoryMark)
    async with database.transaction() as tx:
        last_sequence = await groups.last_sequence(tx.connection)
    # Recreated, not purged: a stream remembers message ids, and would drop new messages as duplicates of old ones.
    # Sequences referenced by PostgreSQL are not reused.
    for stream in (*streams.IN_FLIGHT, streams.WEIGHTS):
        await bus.declarations.recreate(stream, first_sequence=last_sequence + 1)
    stored = {blob.name for blob in await Blobs(bus).listed() if blob.is_whole}
    async with database.transaction() as tx:
        await outbox.drop_work(tx.connection)
        await packages.forget_checks(tx.connection)
        known = await tasks.lock_tasks(tx.connection, await tasks.all_tasks(tx.connection))
        for task in known:
            if task.is_live:
                await _prepare_live_task(tx, task, stored, done)
        await _reconcile_dead_letters(tx.connection, bus)
        relayed = await outbox.relayed(tx.connection)
        position = 1 + max(mark.position if mark else 0, relayed.position, await outbox.last_given(tx.connection))
        await outbox.set_relayed(tx.connection, position)
        http_keys = await keys.http_keys(tx.connection)
        post_http_keys(tx, http_keys)
        named = await aliases.find_aliases(tx.connection)
        for each in named:
            tx.post_value(ALIASES_BUCKET, each.key, each)
        for task in known:
            await publish_status(tx, task.id)
            if (announced := await weight_updates.announcement(tx.connection, task)) is not None:
                subject = streams.weight_updated(task.spec.pool, task.id)
                tx.post([OutboxMessage(subject, announced, f"{task.id}:v{task.version}:weights")])
    await _delete_others(bus, HTTP_KEYS_BUCKET, {each.value.digest for each in http_keys})
    await _delete_others(bus, ALIASES_BUCKET, {each.key for each in named})
    done.unknown = await _delete_stale_statuses(bus, {task.id: task.is_live for task in known})
    await bus.kv.put(HISTORY_BUCKET, outbox.HISTORY_KEY, HistoryMark(deployment=relayed.deployment, position=position))
    return done


async def _prepare_live_task(tx: Transaction, task: Task, stored: set[str], done: Reconciliation) -> None:
    """Void the work in flight of a live, locked task, so that it resumes from its version; pause it if that version is not stored."""
    done.voided[task.id] = await void_live_groups(tx.connection, task, DETAIL, paid_as=VoidReason.FAILED)
    await steps.withdraw_steps(tx.connection, task.id)
    if task.state == TaskState.SUBMITTED:
        await tasks.change(tx.connection, task.id, family=None)  # its environment is checked once more, in the new history
    elif missing := [name for name in await steps.restored_from(tx.connection, task) if name not in stored]:
        why = (
            f"version {task.version} needs {missing[0]}, which is not in the blob store of NATS; restore a later one and resume, or cancel"
        )
        done.paused[task.id] = why
        if await tasks.transition_task(tx.connection, task.id, [TaskState.RUNNING, TaskState.PAUSED], TaskState.PAUSED, reason=why):
            tx.emit_event(task.tenant, task.id, "paused", {"reason": why})


async def _reconcile_dead_letters(connection: AsyncConnection, bus: Bus) -> None:
    """Make the recorded dead letters equal to those in NATS."""
    last = 0
    async for letter in bus.streams.stored(streams.FAILED, "failed.>"):
        last = letter.sequence
        try:
            if not concerns_dead_letter(letter):
                await dead_letters.record_dead_letter(connection, letter.sequence, about(letter.subject), letter.read(DeadLetter))
        except Reject:
            continue
    await dead_letters.forget_dead_letters(connection, after=last)


async def _delete_stale_statuses(bus: Bus, known: dict[str, bool]) -> list[str]:
    """Delete the statuses of tasks that are not in `known` (task → whether it is live); returns these tasks.

    Statuses of live tasks that NATS shows as ended are deleted too: services would drop their work until the relay publishes the new
    status.
    """
    statuses = await bus.kv.values(TASKS_BUCKET, TaskStatus)
    unknown = sorted(status.task for status in statuses if status.task not in known)
    for task in [*unknown, *(status.task for status in statuses if known.get(status.task) and status.state in ENDED)]:
        await bus.kv.delete(TASKS_BUCKET, task)
    return unknown


async def _delete_others(bus: Bus, bucket: str, known: set[str]) -> None:
    for key in sorted(await bus.kv.keys(bucket) - known):
        await bus.kv.delete(bucket, key)


# --------------------------------------------------------------------------------------------------------- command line


def main() -> None:
    settings = read_or_exit(SchedulerSettings)
    assert isinstance(settings, SchedulerSettings)
    sys.exit(asyncio.run(_run(settings)))


async def _run(settings: SchedulerSettings) -> int:
    async with await Database.connect(settings.database_url) as database, await connect_bus(settings, "accept") as bus:
        try:
            await bus.declare(replicas=settings.nats_replicas)
            async with database.alone(RELAY_LOCK):  # waits for a running scheduler to stop
                done = await accept(database, bus)
        except MarlaasError as error:
            sys.stderr.write(f"accept: {error}\n")
            return 1
    sys.stdout.write(as_text(done))
    return 0


def as_text(done: Reconciliation | None) -> str:
    if done is None:
        return "PostgreSQL and NATS have one history; nothing to do\n"
    lines = [f"found: {done.reason}"]
    lines += [f"task {task}: {count} groups in flight are void and refilled" for task, count in sorted(done.voided.items())]
    lines += [f"task {task}: paused: {why}" for task, why in sorted(done.paused.items())]
    lines += [f"task {task}: not in PostgreSQL; its owner must resubmit it" for task in done.unknown]
    return "\n".join([*lines, "one history; start the services", ""])


if __name__ == "__main__":
    main()
