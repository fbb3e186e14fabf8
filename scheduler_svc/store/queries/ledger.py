"""Queries on the ledger of consumed tokens. A row is written once; a trigger (migration 0010) adds it to its task's totals."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from sqlalchemy import BigInteger, Integer, Text, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.store.queries.sql.parameters import Rows
from scheduler_svc.store.queries.sql.statement import Statement
from scheduler_svc.store.tables import ledger, tasks

Kind = Literal["prompt", "sampled", "trained", "evaluation"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Entry(NamedTuple):
    """A row of the ledger, unique by task, kind and number."""

    tenant: str
    task: str
    kind: Kind
    number: int
    """Number of the group or, for `trained`, the version that the step made."""
    tokens: int


_entry = Rows("entry", tenant=Text, task=Text, kind=Text, number=Integer, tokens=BigInteger)
_RECORD_USAGE = Statement(
    insert(ledger).from_select(list(Entry._fields), select(*(_entry.c[name] for name in Entry._fields))).on_conflict_do_nothing()
)


async def record_usage(connection: AsyncConnection, entries: Sequence[Entry]) -> None:
    """Write entries of locked tasks; an entry that is there already stays and is not counted twice."""
    if entries:
        await _RECORD_USAGE.run(connection, _entry.of(entries))


async def recorded_tokens(connection: AsyncConnection, task: str) -> int:
    """Tokens of all the task's entries."""
    return int((await connection.execute(select(tasks.c.booked_tokens).where(tasks.c.id == task))).scalar_one())
