"""Queries on the outbox: messages are written in the transaction that decides them, and relayed afterwards."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from sqlalchemy import BigInteger, LargeBinary, Text, cast, delete, func, select, text, update
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common.bus import refuse_oversize
from common.messages import Event, Message
from common.streams import KIND_HEADER
from scheduler_svc.store.queries.sql.parameters import Rows, any_of, given
from scheduler_svc.store.queries.sql.statement import Statement
from scheduler_svc.store.tables import events, outbox, relay


@dataclass(frozen=True)
class OutboxRow:
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
class OutboxMessage:
    """A message to write into the outbox."""

    subject: str
    message: Message
    message_id: str
    headers: dict[str, str] = field(default_factory=dict)
    as_json: bool = False
    """Key-value entries are JSON, so that any NATS client can read them."""


@dataclass
class _Unwritten:
    """What a transaction is to write before it ends."""

    letters: list[tuple[str, str, str, bytes]] = field(default_factory=list[tuple[str, str, str, bytes]])
    events: list[tuple[str, str, str, str]] = field(default_factory=list[tuple[str, str, str, str]])


_unwritten: WeakKeyDictionary[AsyncConnection, _Unwritten] = WeakKeyDictionary()
"""By transaction under way: each has a connection object of its own."""


def begin(connection: AsyncConnection) -> None:
    """From now on something may be posted in this transaction, which ends with `write`."""
    _unwritten[connection] = _Unwritten()


def post(connection: AsyncConnection, letters: Sequence[OutboxMessage]) -> None:
    """Publish these once the transaction is committed, in the order of these calls. Raises: Reject when one is too large for it."""
    for letter in letters:
        body = letter.message.model_dump_json().encode() if letter.as_json else letter.message.encode()
        post_as_it_was(connection, letter.subject, body, letter.message_id, {KIND_HEADER: letter.message.kind, **letter.headers})


def post_as_it_was(connection: AsyncConnection, subject: str, body: bytes, message_id: str, headers: dict[str, str]) -> None:
    """The same for a message that is encoded."""
    refuse_oversize(subject, body, headers)  # here, where it fails what asks for it; in the outbox it would stop everything behind it
    _unwritten[connection].letters.append((subject, message_id, json.dumps(headers), body))


def record_and_post(connection: AsyncConnection, event: Event, subject: str) -> None:
    """Keep an event, and publish it once the transaction is committed."""
    post(connection, [OutboxMessage(subject, event, "")])
    _unwritten[connection].events.append((event.tenant, event.task, event.event, json.dumps(dict(event.data))))


_letter = Rows("letter", subject=Text, message_id=Text, headers=Text, body=LargeBinary)


_written = select(_letter.c.subject, _letter.c.message_id, cast(_letter.c.headers, JSONB), _letter.c.body)


_event = Rows("event", tenant=Text, task=Text, event=Text, data=Text)


_kept = select(_event.c.tenant, _event.c.task, _event.c.event, cast(_event.c.data, JSONB))


_recorded = insert(events).from_select(["tenant", "task", "event", "data"], _kept).cte("recorded")


_write = insert(outbox).from_select(["subject", "message_id", "headers", "body"], _written)


_WRITE, _WRITE_AND_RECORD = Statement(_write), Statement(_write.add_cte(_recorded))


async def write(connection: AsyncConnection) -> None:
    """What was posted in this transaction becomes rows: one statement, at its end."""
    unwritten = _unwritten.pop(connection)
    if unwritten.events:
        await _WRITE_AND_RECORD.run(connection, _letter.of(unwritten.letters) | _event.of(unwritten.events))
    elif unwritten.letters:
        await _WRITE.run(connection, _letter.of(unwritten.letters))


_OLDEST = Statement(
    select(outbox.c.id, outbox.c.subject, outbox.c.message_id, outbox.c.headers, outbox.c.body).order_by(outbox.c.id).limit(given("most"))
)


async def oldest_parcels(connection: AsyncConnection, most: int) -> list[OutboxRow]:
    rows = await _OLDEST.run(connection, {"most": most})
    return [OutboxRow(row.id, row.subject, row.message_id, row.headers, row.body) for row in rows]


_forgotten = delete(outbox).where(outbox.c.id == any_of("ids", BigInteger)).cte("forgotten")


_DELIVERED = Statement(update(relay).values(position=func.greatest(relay.c.position, given("reached", BigInteger))).add_cte(_forgotten))


async def delivered(connection: AsyncConnection, ids: Sequence[int]) -> None:
    """Forget rows that NATS has confirmed."""
    await _DELIVERED.run(connection, {"ids": list(ids), "reached": max(ids)})


async def relayed(connection: AsyncConnection) -> Relayed:
    row = (await connection.execute(select(relay.c.deployment, relay.c.position))).one()
    return Relayed(row.deployment, row.position)


async def set_relayed(connection: AsyncConnection, position: int) -> None:
    """Nothing up to `position` is to be published any more, and no new row has a number below it."""
    await connection.execute(update(relay).values(position=position))
    await connection.execute(text("SELECT setval('outbox_id_seq', :position)"), {"position": position})


async def drop_work(connection: AsyncConnection) -> None:
    """Forget what would give others work; events and statuses are still published."""
    await connection.execute(delete(outbox).where(outbox.c.subject.regexp_match("^(prompts|trajectories)[.]")))


async def last_given(connection: AsyncConnection) -> int:
    """The last number that a row of the outbox was given, 0 before the first. Survives the rows."""
    statement = text("SELECT coalesce(pg_sequence_last_value('outbox_id_seq'), 0)")
    return int((await connection.execute(statement)).scalar_one())
