"""Handles dead letters: records each one, settles its task or group, and resends its message on request.

Resending is safe, because every handler is idempotent. It is refused if it would have no effect: a task that has ended is not resumed,
and an abandoned group has been refilled. Resending helps for jobs that the scheduler could not handle, results that it could not
settle, and messages that only a newer version understands.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy import delete, func, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.access.roles import MEMBER_VERBS
from common.bus import Bus, Delivery
from common.errors import Reject
from common.message_consistency import about
from common.messages import CheckEnvironment, DeadLetter, OpenGroup, PackageChecked, ResendLetter, SampleTurns, TrainBatch, TurnsSampled
from common.streams import KIND_HEADER
from scheduler_svc.base import deleted
from scheduler_svc.base.audit import Actor, Refused, accepted, actor_of, refused, rejected
from scheduler_svc.base.context import HandlerContext, sender_of
from scheduler_svc.base.sql import GroupKey
from scheduler_svc.base.states import TaskState, VoidReason
from scheduler_svc.base.tables import dead_letters
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.training import evaluations
from scheduler_svc.training.decisions.evaluation import is_group
from scheduler_svc.training.queries import groups, tasks
from scheduler_svc.training.queries.tasks import Task
from scheduler_svc.training.task_events import publish_status
from scheduler_svc.training.termination import end_task, void_and_refund
from scheduler_svc.uploads.packages import settle

log = structlog.get_logger()

SELF_STAGE_PREFIX = "failed.settle."
"""Subject prefix of dead letters written by this service."""
ABOUT_GROUPS = {"open": OpenGroup, "sample": SampleTurns, "turn": TurnsSampled}
"""Stage → its message, for stages whose messages are about a group in flight."""


# -------------------------------------------------------------------------------------------------------------- records


async def forget_dead_letters(connection: AsyncConnection, *, after: int) -> None:
    """Delete records after sequence `after`, the last of stream FAILED: NATS will reuse their numbers."""
    await connection.execute(delete(dead_letters).where(dead_letters.c.sequence > after))


async def record_dead_letter(connection: AsyncConnection, sequence: int, task: str | None, letter: DeadLetter) -> bool:
    """Record a dead letter; False if it was already recorded."""
    values = {
        "sequence": sequence,
        "stage": letter.stage,
        "task": task,
        "subject": letter.subject,
        "reason": letter.reason,
        "attempts": letter.attempts,
    }
    statement = insert(dead_letters).values(values).on_conflict_do_nothing().returning(dead_letters.c.id)
    return (await connection.execute(statement)).first() is not None


async def mark_resent(connection: AsyncConnection, sequence: int, by: int) -> bool:
    """Record that the job `by` resends a dead letter; False if that job has already resent it, or there is no such letter."""
    statement = (
        update(dead_letters)
        .where(dead_letters.c.sequence == sequence, dead_letters.c.resent_by.is_distinct_from(by))
        .values(resent_by=by, resent_at=func.now())
        .returning(dead_letters.c.id)
    )
    return (await connection.execute(statement)).first() is not None


# -------------------------------------------------------------------------------------------------------------- settle


async def handle_dead_letters(context: HandlerContext, deliveries: Sequence[Delivery]) -> None:
    async with context.transaction() as tx:
        for delivery in deliveries:
            if not concerns_dead_letter(delivery):
                await message_failed(tx, delivery)


async def message_failed(tx: Transaction, delivery: Delivery) -> None:
    """Record the dead letter; void its group, or fail its task. Dead letters about deleted tasks are ignored."""
    letter = delivery.read(DeadLetter)
    task_id = about(delivery.subject)
    if task_id and await deleted.find(tx.connection, task_id) is not None:
        return
    if not await record_dead_letter(tx.connection, delivery.sequence, task_id, letter):
        return
    if _sender(letter.subject) is not None:
        tx.record(Refused(actor_of(letter.subject, None), "malformed"))
    log.warning("dead_letter", dead_stage=letter.stage, subject=letter.subject, letter=delivery.sequence)
    if letter.stage == "package" and (package := streams.package_of(letter.subject)) is not None:
        await settle(tx, PackageChecked(tenant=package[0], package=package[1], objection=letter.reason))
    task = next(iter(await tasks.lock_tasks(tx.connection, [task_id])), None) if task_id else None
    if task is None:
        return
    if task.is_live and not delivery.subject.startswith(SELF_STAGE_PREFIX):  # an operator must examine this service's own dead letters
        await _settle(tx, task, letter)
    await publish_status(tx, task.id)


def concerns_dead_letter(delivery: Delivery) -> bool:
    """Whether this dead letter reports that another one could not be recorded. This one is then not recorded either."""
    return delivery.subject.startswith(SELF_STAGE_PREFIX) and delivery.read(DeadLetter).subject.startswith("failed.")


async def _settle(tx: Transaction, task: Task, letter: DeadLetter) -> None:
    if letter.stage in ("check", "train") and not _is_waited_for(letter, task):
        log.warning("dead_letter_ignored", task=task.id, dead_stage=letter.stage, reason="not what the task waits for")
    elif letter.stage == "check":
        tx.record(rejected(task.tenant, task.id, "malformed"))
        await end_task(tx, task, TaskState.REJECTED, reason=letter.reason, data={"reasons": [f"environment: {letter.reason}"]})
    elif letter.stage == "train":
        await end_task(tx, task, TaskState.FAILED, reason=letter.reason)
    elif (key := _group_of(letter, task.id)) is not None and is_group(key[1]):
        await evaluations.abandon(tx, {task.id: task}, [key], letter.reason)
    elif key is not None and await groups.is_open(tx.connection, key):  # a complete group needs no further message
        await void_and_refund(tx, {task.id: task}, [key], VoidReason.FAILED, {key: letter.reason})


def _is_waited_for(letter: DeadLetter, task: Task) -> bool:
    """Whether the task waits for the letter's message, and cannot continue without it; False for undecodable and repeated messages.

    True for a message of an unknown kind, since a newer version may have sent it.
    """
    model = CheckEnvironment if letter.stage == "check" else TrainBatch
    if letter.headers.get(KIND_HEADER, model.kind) != model.kind:
        return True
    try:
        message = model.decode(letter.body)
    except Reject:
        return False
    if isinstance(message, TrainBatch):
        return (message.task, message.version) == (task.id, task.version)
    return message.task == task.id and task.state == TaskState.SUBMITTED


def _group_of(letter: DeadLetter, task: str) -> GroupKey | None:
    """Group of a message in flight; None if its body cannot be decoded (the group then ends at its deadline)."""
    if letter.stage not in ABOUT_GROUPS:
        return None
    try:
        message = ABOUT_GROUPS[letter.stage].decode(letter.body)
    except Reject:
        return None
    return (task, message.group.group) if message.group.task == task else None


# -------------------------------------------------------------------------------------------------------------- resend


@dataclass(frozen=True)
class ResendRequest:
    """A user's request to resend the message of a dead letter, with the stored message if it is available."""

    tenant: str
    number: int
    by: int
    """Sequence of the requesting job in its stream."""
    sender: Actor
    stored: Delivery | None = None
    """Dead letter as stored. If it has expired or cannot be decoded, it is None, and so are `task` and `letter`."""
    task: str | None = None
    letter: DeadLetter | None = None
    body: bytes | None = None
    """Body of the dead letter's message; None if it has expired."""


async def resend_message(context: HandlerContext, delivery: Delivery) -> None:
    """Handle a job of `jobs.resend.<tenant>`. Raises: Reject if it cannot be decoded; Retry if a store is unavailable."""
    request = await read_resend_request(context.bus, delivery)
    async with context.transaction() as tx:
        await resend(tx, request)


async def read_resend_request(bus: Bus, delivery: Delivery) -> ResendRequest:
    """Decode the job and read the dead letter that it names. Raises: Reject if the job cannot be decoded; Retry if NATS is unavailable."""
    job, sender = delivery.read(ResendLetter), sender_of(delivery)
    try:
        stored = await bus.streams.read(streams.FAILED, job.letter)
        letter = stored.read(DeadLetter)
    except (LookupError, Reject):
        return ResendRequest(job.tenant, job.letter, delivery.sequence, sender)
    body = await _body(bus, letter)
    return ResendRequest(job.tenant, job.letter, delivery.sequence, sender, stored, about(stored.subject), letter, body)


async def resend(tx: Transaction, request: ResendRequest) -> None:
    """Publish the message under a new id, or reject the request."""
    if not await _is_own(tx, request):  # same answer as for an unknown letter, so that tenants cannot probe
        return _refuse(tx, request, "none", f"letter: there is no dead letter {request.number} of tenant '{request.tenant}'")
    if request.stored is not None and not concerns_dead_letter(request.stored):
        await message_failed(tx, request.stored)  # it may not be settled yet: requests and dead letters arrive on two streams
    task = await tasks.lock_own_task(tx.connection, request.tenant, request.task) if request.task else None
    objection = _objection(request, task)
    key = _group_of(request.letter, task.id) if objection is None and request.letter is not None and task is not None else None
    if key is not None and not await groups.is_open(tx.connection, key):
        objection = f"group {key[1]} is complete, or was abandoned and refilled: its message has no use"
    if objection is not None:
        log.warning("letter_not_resent", letter=request.number, tenant=request.tenant, task=request.task, reason=objection)
        return _refuse(tx, request, request.task or "none", objection)
    assert request.letter is not None and request.body is not None
    if not await mark_resent(tx.connection, request.number, request.by):
        return None
    headers = {name: value for name, value in request.letter.headers.items() if not name.startswith("Nats-")}
    message_id = f"resent:{request.number}:{request.by}"
    tx.outbox.post_encoded(request.letter.subject, request.body, message_id, headers)
    tx.record(accepted(request.sender, request.task or "", {"letter": request.number}))
    log.info("letter_resent", letter=request.number, tenant=request.tenant, task=request.task, subject=request.letter.subject)
    tx.emit_event(request.tenant, request.task or "none", "resent", {"letter": request.number, "subject": request.letter.subject})
    return None


def _refuse(tx: Transaction, request: ResendRequest, task: str, objection: str) -> None:
    tx.record(refused(request.sender, objection))
    tx.emit_event(request.tenant, task, "rejected", {"letter": request.number, "reasons": [objection]})


async def _is_own(tx: Transaction, request: ResendRequest) -> bool:
    """Whether the letter exists, and is about a task or a job of the requesting tenant."""
    if request.letter is None:
        return False
    if request.task is None:
        return _sender(request.letter.subject) == request.tenant
    task = await tasks.find_task(tx.connection, request.task)
    return task is not None and task.tenant == request.tenant


def _objection(request: ResendRequest, task: Task | None) -> str | None:
    assert request.letter is not None
    verb = streams.token(request.letter.subject, 1)
    # Members may resend, but the original sender may have been an owner or an operator; the scheduler would resend with its own rights.
    if task is None and (verb not in MEMBER_VERBS or (verb == "submit" and streams.is_own_job(request.letter.sequence))):
        return f"letter: a job '{verb}' is not sent again by `resend`; send a new one"
    if task is not None and not task.is_live:
        return f"letter: task {task.id} is {task.state}, and a task that has ended is not resumed; submit a new one"
    return f"letter: the message of dead letter {request.number} is no longer stored" if request.body is None else None


def _sender(subject: str) -> str | None:
    """Tenant in the subject of a job; None for any other subject."""
    return streams.token(subject, 2) if streams.token(subject, 0) == "jobs" else None


async def _body(bus: Bus, letter: DeadLetter) -> bytes | None:
    """Body of the letter's message; read from the stream SCORED if the dead letter was written from headers only. None if not stored."""
    if letter.body or not letter.sequence or not letter.subject.startswith("trajectories.scored."):
        return letter.body or None
    try:
        stored = await bus.streams.read(streams.SCORED, letter.sequence)
    except LookupError:
        return None
    return stored.body if stored.subject == letter.subject else None
