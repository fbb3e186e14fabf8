"""Sentences about what tasks have consumed. Each row of the ledger is written once; PostgreSQL counts it in its task's totals
(the trigger of migration 0010), so that nobody adds up a task's past."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from sqlalchemy import BigInteger, Integer, Text, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.store.queries.sql.parameters import Rows
from scheduler_svc.store.queries.sql.statement import Statement
from scheduler_svc.store.tables import ledger, tasks


class Entry(NamedTuple):
    """A row of the ledger; there is one of each task, kind and number."""

    tenant: str
    task: str
    kind: Literal["prompt", "sampled", "trained", "evaluation"]
    number: int
    """The group's, or, where it was trained, the version that the step made."""
    tokens: int


_entry = Rows("entry", tenant=Text, task=Text, kind=Text, number=Integer, tokens=BigInteger)
_BOOK = Statement(
    insert(ledger).from_select(list(Entry._fields), select(*(_entry.c[name] for name in Entry._fields))).on_conflict_do_nothing()
)


async def book(connection: AsyncConnection, entries: Sequence[Entry]) -> None:
    """Write these of tasks that are locked; what is there already stays and does not count again."""
    if entries:
        await _BOOK.run(connection, _entry.of(entries))


async def booked_tokens(connection: AsyncConnection, task: str) -> int:
    """All that the ledger has of the task."""
    return int((await connection.execute(select(tasks.c.booked_tokens).where(tasks.c.id == task))).scalar_one())
