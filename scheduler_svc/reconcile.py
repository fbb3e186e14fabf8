"""Go on with stores of different pasts, with what both still have: `python -m scheduler_svc.accept`, all services stopped.

PostgreSQL decides what was trained. What is under way is void and sampled again, since its messages may be gone or be
another past's; versions that PostgreSQL does not know are forgotten, and the task goes on from the one it knows. A task
whose checkpoint NATS no longer has is paused, with the reason. Safe to run again.
"""

import asyncio
import sys
from dataclasses import dataclass, field

from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.blobs import Blobs
from common.bus import Bus
from common.errors import MarlaasError, Reject
from common.messages import DeadLetter, HistoryMark, TaskStatus
from common.runtime.settings import read_or_exit
from common.streams import HISTORY_BUCKET, TASKS_BUCKET
from common.task_states import ENDED
from scheduler_svc.handlers.dead_letters import concerns_dead_letter, recorded_task
from scheduler_svc.lifecycle.task_events import publish_status
from scheduler_svc.lifecycle.termination import void_live_groups
from scheduler_svc.maintenance import store_consistency
from scheduler_svc.settings import SchedulerSettings
from scheduler_svc.store.database import RELAY_LOCK, Database
from scheduler_svc.store.queries import dead_letters, groups, outbox, steps, tasks
from scheduler_svc.store.queries.tasks import Task
from scheduler_svc.store.states import TaskState
from scheduler_svc.store.transaction import OutboxMessage, Transaction

DETAIL = "the stores were of different pasts"


@dataclass
class Reconciliation:
    """What was done."""

    reason: str
    voided: dict[str, int] = field(default_factory=dict[str, int])
    """Task → groups under way, which are sampled again."""
    paused: dict[str, str] = field(default_factory=dict[str, str])
    """Task → why it cannot go on."""
    unknown: list[str] = field(default_factory=list[str])
    """Tasks of which only NATS knows; their owners must submit them again."""


async def accept(database: Database, bus: Bus) -> Reconciliation | None:
    """Make one past of both; None when they are of one. Raises: Retry when a store is away."""
    reason = await store_consistency.difference(database, bus)
    if reason is None:
        return None
    done = Reconciliation(reason)
    mark = await bus.kv.get(HISTORY_BUCKET, store_consistency.KEY, HistoryMark)
    async with database.transaction() as tx:
        last_sequence = await groups.last_sequence(tx.connection)
    # Anew, not purged: they remember the ids of messages, and would take those of the new past for repetitions of the old.
    # What PostgreSQL knows by a sequence keeps it for itself.
    for stream in (*streams.IN_FLIGHT, streams.WEIGHTS):
        await bus.declarations.recreate(stream, first_sequence=last_sequence + 1)
    stored = {blob.name for blob in await Blobs(bus).listed() if blob.is_whole}
    async with database.transaction() as tx:
        await outbox.drop_work(tx.connection)
        known = await tasks.lock_tasks(tx.connection, await tasks.all_tasks(tx.connection))
        for task in known:
            if task.is_live:
                await _prepare_live_task(tx, task, stored, done)
        await _reconcile_dead_letters(tx.connection, bus)
        relayed = await outbox.relayed(tx.connection)
        position = 1 + max(mark.position if mark else 0, relayed.position, await outbox.last_given(tx.connection))
        await outbox.set_relayed(tx.connection, position)
        for task in known:
            await publish_status(tx, task.id)
            if (told := await steps.announcement(tx.connection, task)) is not None:
                subject = streams.weight_updated(task.spec.pool, task.id)
                tx.post([OutboxMessage(subject, told, f"{task.id}:v{task.version}:weights")])
    done.unknown = await _delete_stale_statuses(bus, {task.id: task.is_live for task in known})
    await bus.kv.put(HISTORY_BUCKET, store_consistency.KEY, HistoryMark(deployment=relayed.deployment, position=position))
    return done


async def _prepare_live_task(tx: Transaction, task: Task, stored: set[str], done: Reconciliation) -> None:
    """Prepare a live task (locked) for being sampled from its version again."""
    done.voided[task.id] = await void_live_groups(tx.connection, task, DETAIL)
    await steps.withdraw_steps(tx.connection, task.id)
    if task.state == TaskState.SUBMITTED:
        await tasks.forget_family(tx.connection, task.id)  # so that its environment is checked again
    elif missing := [name for name in await steps.restored_from(tx.connection, task) if name not in stored]:
        why = (
            f"version {task.version} needs {missing[0]}, which is not in the blob store of NATS; restore a later one and resume, or cancel"
        )
        done.paused[task.id] = why
        if await tasks.transition_task(tx.connection, task.id, [TaskState.RUNNING, TaskState.PAUSED], TaskState.PAUSED, reason=why):
            tx.emit_event(task.tenant, task.id, "paused", {"reason": why})


async def _reconcile_dead_letters(connection: AsyncConnection, bus: Bus) -> None:
    """Put the dead letters that NATS has on record, and no others."""
    last = 0
    async for letter in bus.streams.stored(streams.FAILED, "failed.>"):
        last = letter.sequence
        try:
            if not concerns_dead_letter(letter):
                await dead_letters.record_dead_letter(connection, letter.sequence, recorded_task(letter.subject), letter.read(DeadLetter))
        except Reject:
            continue
    await dead_letters.forget_dead_letters(connection, after=last)


async def _delete_stale_statuses(bus: Bus, known: dict[str, bool]) -> list[str]:
    """Delete the status of tasks that are not `known` (task → whether it is live); returns these.

    And of live ones that NATS has as ended: services would drop their work until the relay has published what they are now.
    """
    told = await bus.kv.values(TASKS_BUCKET, TaskStatus)
    unknown = sorted(status.task for status in told if status.task not in known)
    for task in [*unknown, *(status.task for status in told if known.get(status.task) and status.state in ENDED)]:
        await bus.kv.delete(TASKS_BUCKET, task)
    return unknown


# --------------------------------------------------------------------------------------------------------- command line


def main() -> None:
    settings = read_or_exit(SchedulerSettings)
    assert isinstance(settings, SchedulerSettings)
    sys.exit(asyncio.run(_run(settings)))


async def _run(settings: SchedulerSettings) -> int:
    database = await Database.connect(settings.database_url)
    bus = await Bus.connect(settings.nats_url, "accept")
    try:
        await bus.declare(replicas=settings.nats_replicas)
        async with database.alone(RELAY_LOCK):  # waits for a scheduler that still runs
            done = await accept(database, bus)
    except MarlaasError as error:
        sys.stderr.write(f"accept: {error}\n")
        return 1
    finally:
        await bus.close()
        await database.close()
    sys.stdout.write(_as_text(done))
    return 0


def _as_text(done: Reconciliation | None) -> str:
    if done is None:
        return "PostgreSQL and NATS are of one past; nothing to do\n"
    lines = [f"found: {done.reason}"]
    lines += [f"task {task}: {count} groups under way are sampled again" for task, count in sorted(done.voided.items())]
    lines += [f"task {task}: paused: {why}" for task, why in sorted(done.paused.items())]
    lines += [f"task {task}: not in PostgreSQL; its owner must submit it again" for task in done.unknown]
    return "\n".join([*lines, "one past again; start the services", ""])


if __name__ == "__main__":
    main()
