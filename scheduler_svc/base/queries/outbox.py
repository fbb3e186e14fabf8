"""Queries on the outbox: messages are written in the transaction that decides them, and relayed afterwards."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import ARRAY, BigInteger, Text, cast, delete, exists, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.base.sql import Statement, any_of, given
from scheduler_svc.base.tables import outbox, relay


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
    """Row number up to which NATS has confirmed the outbox, and the deployment's id."""

    deployment: str
    position: int


_OLDEST = Statement(
    select(outbox.c.id, outbox.c.subject, outbox.c.message_id, outbox.c.headers, outbox.c.body).order_by(outbox.c.id).limit(given("most"))
)


async def oldest_rows(connection: AsyncConnection, most: int) -> list[OutboxRow]:
    rows = await _OLDEST.run(connection, {"most": most})
    return [OutboxRow(row.id, row.subject, row.message_id, row.headers, row.body) for row in rows]


async def has_messages_about(connection: AsyncConnection, names: Collection[str]) -> bool:
    """Whether a message whose subject names one of the tasks or tenants has not been published."""
    named = func.string_to_array(outbox.c.subject, ".").op("&&")(cast(list(names), ARRAY(Text)))
    return bool((await connection.execute(select(exists().where(named)))).scalar_one())


_forgotten = delete(outbox).where(outbox.c.id == any_of("ids", BigInteger)).cte("forgotten")
_DELIVERED = Statement(update(relay).values(position=func.greatest(relay.c.position, given("reached", BigInteger))).add_cte(_forgotten))


async def delivered(connection: AsyncConnection, ids: Sequence[int]) -> None:
    """Delete rows that NATS has confirmed."""
    await _DELIVERED.run(connection, {"ids": list(ids), "reached": max(ids)})


async def relayed(connection: AsyncConnection) -> Relayed:
    row = (await connection.execute(select(relay.c.deployment, relay.c.position))).one()
    return Relayed(row.deployment, row.position)


async def set_relayed(connection: AsyncConnection, position: int) -> None:
    """Set the confirmed position; new rows get numbers above it."""
    await connection.execute(update(relay).values(position=position))
    await connection.execute(text("SELECT setval('outbox_id_seq', :position)"), {"position": position})


async def drop_work(connection: AsyncConnection) -> None:
    """Delete rows that would start work in other services; events and statuses are still published."""
    await connection.execute(delete(outbox).where(outbox.c.subject.regexp_match("^(prompts|trajectories)[.]")))


async def last_given(connection: AsyncConnection) -> int:
    """Last row number of the outbox, also of rows deleted since; 0 before the first."""
    statement = text("SELECT coalesce(pg_sequence_last_value('outbox_id_seq'), 0)")
    return int((await connection.execute(statement)).scalar_one())
