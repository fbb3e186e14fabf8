"""Sentences about what is to be published: written in the transaction that decides it, relayed afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import BigInteger, LargeBinary, Text, delete, func, select, text, update
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import DeadLetter, Event, Message, ReplicaReport, as_json
from common.streams import KIND_HEADER
from scheduler_svc.queries.parameters import any_of, given
from scheduler_svc.tables import dead_letters, events, outbox, relay, replicas


@dataclass(frozen=True)
class Parcel:
    """A row of the outbox."""

    id: int
    subject: str
    message_id: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Relayed:
    """How much of the outbox NATS has confirmed, and of which deployment's."""

    deployment: str
    position: int


@dataclass(frozen=True)
class Letter:
    """A message to write into the outbox."""

    subject: str
    message: Message
    message_id: str
    headers: dict[str, str] = field(default_factory=dict)
    as_json: bool = False
    """Key-value entries are JSON, so that any NATS client can read them."""


_POST = insert(outbox).returning(outbox.c.id)  # without `returning`, one statement a row


async def post(connection: AsyncConnection, letters: Sequence[Letter]) -> None:
    """Publish these once the transaction is committed."""
    rows = [
        {
            "subject": letter.subject,
            "message_id": letter.message_id,
            "headers": {KIND_HEADER: letter.message.kind, **letter.headers},
            "body": letter.message.model_dump_json().encode() if letter.as_json else letter.message.encode(),
        }
        for letter in letters
    ]
    if rows:
        await connection.execute(_POST, rows)


async def post_as_it_was(connection: AsyncConnection, subject: str, body: bytes, message_id: str, headers: dict[str, str]) -> None:
    """Publish a message that was encoded elsewhere, once the transaction is committed."""
    await connection.execute(insert(outbox).values(subject=subject, message_id=message_id, headers=headers, body=body))


_OLDEST = (
    select(outbox.c.id, outbox.c.subject, outbox.c.message_id, outbox.c.headers, outbox.c.body).order_by(outbox.c.id).limit(given("most"))
)


async def oldest_parcels(connection: AsyncConnection, most: int) -> list[Parcel]:
    rows = (await connection.execute(_OLDEST, {"most": most})).all()
    return [Parcel(row.id, row.subject, row.message_id, row.headers, row.body) for row in rows]


_forgotten = delete(outbox).where(outbox.c.id == any_of("ids", BigInteger)).cte("forgotten")
_DELIVERED = update(relay).values(position=func.greatest(relay.c.position, given("reached", BigInteger))).add_cte(_forgotten)


async def delivered(connection: AsyncConnection, ids: Sequence[int]) -> None:
    """Forget rows that NATS has confirmed."""
    await connection.execute(_DELIVERED, {"ids": list(ids), "reached": max(ids)})


async def relayed(connection: AsyncConnection) -> Relayed:
    row = (await connection.execute(select(relay.c.deployment, relay.c.position))).one()
    return Relayed(row.deployment, row.position)


async def set_relayed(connection: AsyncConnection, position: int) -> None:
    """Nothing up to `position` is to be published any more, and no new row has a number below it."""
    await connection.execute(update(relay).values(position=position))
    numbers = (
        "SELECT setval('outbox_id_seq', :position), setval('events_id_seq', greatest(:position, (SELECT last_value FROM events_id_seq)))"
    )
    await connection.execute(text(numbers), {"position": position})


async def drop_work(connection: AsyncConnection) -> None:
    """Forget what would give others work; events and statuses are still published."""
    await connection.execute(delete(outbox).where(outbox.c.subject.regexp_match("^(prompts|trajectories)[.]")))


async def forget_dead_letters(connection: AsyncConnection, *, after: int) -> None:
    """Those of a stream FAILED that was longer than the one there is: their numbers are given again."""
    await connection.execute(delete(dead_letters).where(dead_letters.c.sequence > after))


async def last_given(connection: AsyncConnection) -> int:
    """The last number that a row of the outbox was given, 0 before the first. Survives the rows."""
    statement = text("SELECT coalesce(pg_sequence_last_value('outbox_id_seq'), 0)")
    return int((await connection.execute(statement)).scalar_one())


_recorded = (
    insert(events)
    .values(tenant=given("of_tenant"), task=given("of_task"), event=given("named"), data=given("saying"))
    .returning(events.c.id)
    .cte("recorded")
)
_message_id = func.concat("event:", _recorded.c.id)
_parcel = select(given("to", Text), _message_id, given("with_headers", JSONB), given("encoded", LargeBinary))
_RECORD_AND_POST = insert(outbox).from_select(["subject", "message_id", "headers", "body"], _parcel)


async def record_and_post(connection: AsyncConnection, event: Event, subject: str) -> None:
    """Write an event's row and its message, whose id is made of the row's number; one statement."""
    about = {"of_tenant": event.tenant, "of_task": event.task, "named": event.event, "saying": dict(event.data)}
    parcel = {"to": subject, "with_headers": {KIND_HEADER: event.kind}, "encoded": event.encode()}
    await connection.execute(_RECORD_AND_POST, about | parcel)


async def record_dead_letter(connection: AsyncConnection, sequence: int, task: str | None, letter: DeadLetter) -> bool:
    """Keep the dead letter's facts; False when it was recorded before."""
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
    """Note that the job `by` has a dead letter sent again; False when that is done, or no such letter is on record."""
    statement = (
        update(dead_letters)
        .where(dead_letters.c.sequence == sequence, dead_letters.c.resent_by.is_distinct_from(by))
        .values(resent_by=by, resent_at=func.now())
        .returning(dead_letters.c.id)
    )
    return (await connection.execute(statement)).first() is not None


async def record_replicas(connection: AsyncConnection, reports: Sequence[ReplicaReport]) -> None:
    """Refresh the rows of the replicas that are alive; forget those gone for a day."""
    await connection.execute(delete(replicas).where(replicas.c.seen_at < func.now() - text("interval '1 day'")))
    for report in reports:
        values = {"service": report.service, "pool": report.pool, "report": as_json(report), "seen_at": func.now()}
        statement = insert(replicas).values(id=f"{report.service}.{report.replica}", **values)
        await connection.execute(statement.on_conflict_do_update(index_elements=[replicas.c.id], set_=values))
