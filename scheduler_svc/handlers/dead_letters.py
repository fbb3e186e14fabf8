"""Dead letters: each is put on record, what it was about is settled, and its message is sent again when somebody asks.

Sending again is safe, because every handler may run twice. It is refused where it could only be useless: a task that has
ended is not revived, and a group that was given up has been refilled. So what is worth sending again is a job that the
scheduler could not take, an answer that it could not settle, and what a newer version understands.
"""

from dataclasses import dataclass

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.bus import Bus, Delivery
from common.errors import Reject
from common.messages import CheckEnvironment, DeadLetter, OpenGroup, ResendLetter, SampleTurns, TrainBatch, TurnsSampled
from common.streams import KIND_HEADER
from scheduler_svc.decisions.evaluation_plan import is_group
from scheduler_svc.lifecycle import evaluations
from scheduler_svc.lifecycle.task_events import announce, publish_status
from scheduler_svc.lifecycle.termination import end_task, void_and_refund
from scheduler_svc.store.queries import dead_letters, groups, outbox, tasks
from scheduler_svc.store.queries.sql.parameters import GroupKey
from scheduler_svc.store.queries.tasks import Task
from scheduler_svc.store.states import TaskState, VoidReason

log = structlog.get_logger()

OWN = "failed.settle."
"""Letters about what this service could not settle itself."""
ABOUT_GROUPS = {"open": OpenGroup, "sample": SampleTurns, "turn": TurnsSampled}
"""Stage → the message that it handles, where that is about a group on its way."""


# -------------------------------------------------------------------------------------------------------------- settle


async def message_failed(connection: AsyncConnection, delivery: Delivery) -> None:
    """Settle what a dead letter was about: its group is void, or its task fails."""
    letter = delivery.read(DeadLetter)
    task_id = recorded_task(delivery.subject)
    if not await dead_letters.record_dead_letter(connection, delivery.sequence, task_id, letter):
        return
    log.warning("dead_letter", dead_stage=letter.stage, subject=letter.subject, reason=letter.reason)
    task = next(iter(await tasks.lock_tasks(connection, [task_id])), None) if task_id else None
    if task is None:
        return
    if task.is_live and not delivery.subject.startswith(OWN):  # this service's own: a person must look
        await _settle(connection, task, letter)
    await publish_status(connection, task.id)


def is_about_a_letter(delivery: Delivery) -> bool:
    """Whether it says that a dead letter could not be put on record; then it will not be either."""
    return delivery.subject.startswith(OWN) and delivery.read(DeadLetter).subject.startswith("failed.")


async def _settle(connection: AsyncConnection, task: Task, letter: DeadLetter) -> None:
    if letter.stage in ("check", "train") and not _is_waited_for(letter, task):
        log.warning("dead_letter_ignored", task=task.id, dead_stage=letter.stage, reason="not what the task waits for")
    elif letter.stage == "check":
        await end_task(connection, task, TaskState.REJECTED, reason=letter.reason, data={"reasons": [f"environment: {letter.reason}"]})
    elif letter.stage == "train":
        await end_task(connection, task, TaskState.FAILED, reason=letter.reason)
    elif (key := _group_of(letter, task.id)) is not None and is_group(key[1]):
        await evaluations.give_up(connection, {task.id: task}, [key], letter.reason)
    elif key is not None and await groups.is_open(connection, key):  # a complete group has all that it needs
        await void_and_refund(connection, {task.id: task}, [key], VoidReason.FAILED, {key: letter.reason})


def _is_waited_for(letter: DeadLetter, task: Task) -> bool:
    """Whether the task cannot go on without the message; not so for garbage and repetitions.

    A message of a kind that this version does not know may be a newer one's, so it counts.
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
    """The group that a message on its way was about; None when its body is garbage (its deadline settles the group)."""
    if letter.stage not in ABOUT_GROUPS:
        return None
    try:
        message = ABOUT_GROUPS[letter.stage].decode(letter.body)
    except Reject:
        return None
    return (task, message.group.group) if message.group.task == task else None


# ---------------------------------------------------------------------------------------------------------- send again


@dataclass(frozen=True)
class ResendRequest:
    """Somebody's wish to have a letter's message sent again, with what the streams hold of it."""

    tenant: str
    number: int
    by: int
    """Sequence of the job that asks, in its stream."""
    stored: Delivery | None
    """The letter as its stream has it; None when it is gone."""
    task: str | None
    letter: DeadLetter | None
    """None when it is gone, or cannot be read."""
    body: bytes | None
    """Of its message; None when that is gone."""


async def read_resend_request(bus: Bus, delivery: Delivery) -> ResendRequest:
    """Raises: Reject when it is none; Retry when NATS is away."""
    job = delivery.read(ResendLetter)
    if delivery.subject != streams.resend(job.tenant):
        raise Reject(f"{delivery.subject} carries a job of tenant '{job.tenant}'")
    try:
        stored = await bus.streams.read(streams.FAILED, job.letter)
        letter = stored.read(DeadLetter)
    except (LookupError, Reject):
        return ResendRequest(job.tenant, job.letter, delivery.sequence, stored=None, task=None, letter=None, body=None)
    return ResendRequest(job.tenant, job.letter, delivery.sequence, stored, recorded_task(stored.subject), letter, await _body(bus, letter))


async def resend(connection: AsyncConnection, wish: ResendRequest) -> None:
    """Publish the letter's message again under a new id, or say why not."""
    if wish.stored is not None and not is_about_a_letter(wish.stored):
        await message_failed(connection, wish.stored)  # which nobody may have settled yet: wishes and letters come by two ways
    task = next(iter(await tasks.lock_tasks(connection, [wish.task])), None) if wish.task else None
    objection = _objection(wish, task)
    key = _group_of_wish(wish, task) if objection is None and task is not None else None
    if key is not None and not await groups.is_open(connection, key):
        objection = f"group {key[1]} is complete, or was given up and another took its place: nobody waits for it"
    if objection is not None:
        log.warning("letter_not_resent", letter=wish.number, tenant=wish.tenant, task=wish.task, reason=objection)
        announce(connection, wish.tenant, wish.task or "none", "rejected", {"letter": wish.number, "reasons": [objection]})
        return
    assert wish.letter is not None and wish.body is not None
    if not await dead_letters.mark_resent(connection, wish.number, wish.by):
        return
    headers = {name: value for name, value in wish.letter.headers.items() if not name.startswith("Nats-")}
    message_id = f"resent:{wish.number}:{wish.by}"
    outbox.post_as_it_was(connection, wish.letter.subject, wish.body, message_id, headers)
    log.info("letter_resent", letter=wish.number, tenant=wish.tenant, task=wish.task, subject=wish.letter.subject)
    announce(connection, wish.tenant, wish.task or "none", "resent", {"letter": wish.number, "subject": wish.letter.subject})


def _objection(wish: ResendRequest, task: Task | None) -> str | None:
    if wish.letter is None:
        return f"letter: there is no dead letter {wish.number}"
    owner = task.tenant if task else _sender(wish.letter.subject)
    if owner != wish.tenant:
        return f"letter: dead letter {wish.number} is about no task of tenant '{wish.tenant}'"
    if task is not None and not task.is_live:
        return f"letter: task {task.id} is {task.state}, and what has ended is not revived; submit it again"
    return f"letter: the message of dead letter {wish.number} is no longer stored" if wish.body is None else None


def _group_of_wish(wish: ResendRequest, task: Task) -> GroupKey | None:
    return _group_of(wish.letter, task.id) if wish.letter else None


def recorded_task(subject: str) -> str | None:
    """Of `failed.<stage>.<task>`."""
    task = streams.token(subject, 2)
    return None if task == "none" else task


def _sender(subject: str) -> str | None:
    """The tenant of `jobs.<verb>.<tenant>`; None for any other subject."""
    parts = subject.split(".", 2)
    return parts[2] if parts[0] == "jobs" and len(parts) == 3 else None


async def _body(bus: Bus, letter: DeadLetter) -> bytes | None:
    """The message's body: in its own stream where the letter was written from headers only."""
    if letter.body or not letter.sequence or not letter.subject.startswith("trajectories.scored."):
        return letter.body or None
    try:
        stored = await bus.streams.read(streams.SCORED, letter.sequence)
    except LookupError:
        return None
    return stored.body if stored.subject == letter.subject else None
