"""Queries on the ledger of tasks' usage. Rows are written once; a trigger adds their tokens to their task's totals.

Only a row's payer may change later, from the tenant to nobody.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from sqlalchemy import BigInteger, Date, Integer, Text, cast, func, literal, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages.tenancy.billing import LedgerKind
from scheduler_svc.base.sql import GroupKey, Rows, Statement, keyed, keys
from scheduler_svc.base.states import PackageState
from scheduler_svc.base.tables import ledger, package_usage, packages, stored_blobs, tasks
from scheduler_svc.tenancy.decisions.budgets import Payer


class Entry(NamedTuple):
    """A row of the ledger, unique by task, kind and number."""

    tenant: str
    task: str
    kind: LedgerKind
    number: int
    """Number of the group; for `trained`, the version that the step produced; for `stored_byte_hours`, the hour since 1970; for
    `accelerator`, the slice's number."""
    tokens: int
    """Quantity in the kind's unit."""
    paid_by: Payer = "tenant"


_entry = Rows("entry", tenant=Text, task=Text, kind=Text, number=Integer, tokens=BigInteger, paid_by=Text)
_RECORD_USAGE = Statement(
    insert(ledger).from_select(list(Entry._fields), select(*(_entry.c[name] for name in Entry._fields))).on_conflict_do_nothing()
)


async def record_usage(connection: AsyncConnection, entries: Sequence[Entry]) -> None:
    """Insert entries of locked tasks; existing entries stay and are not counted twice."""
    if entries:
        await _RECORD_USAGE.run(connection, _entry.of(entries))


async def recorded_tokens(connection: AsyncConnection, task: str) -> int:
    """Sum of the tokens of all the task's entries."""
    return int((await connection.execute(select(tasks.c.booked_tokens).where(tasks.c.id == task))).scalar_one())


_OF_A_GROUP = ("prompt", "sampled", "env_ms")
_FORGIVE = Statement(
    update(ledger)
    .where(keyed(ledger.c.task, ledger.c.number), or_(*(ledger.c.kind == kind for kind in _OF_A_GROUP)), ledger.c.paid_by == "tenant")
    .values(paid_by="nobody")
)


async def forgive(connection: AsyncConnection, found: Collection[GroupKey]) -> None:
    """Exempt these groups' entries from payment. The groups were complete before they became void; their tasks are locked."""
    if found:
        await _FORGIVE.run(connection, keys(found))


_HOUR = func.floor(func.extract("epoch", func.now()) / 3600).cast(Integer)


async def record_stored_bytes(connection: AsyncConnection) -> int:
    """Record the bytes stored now by each task, and by each tenant's packages, for the current hour; an hour counts once.

    Returns the number of entries.
    """
    stored = (
        select(tasks.c.tenant, tasks.c.id, literal("stored_byte_hours"), _HOUR, func.sum(stored_blobs.c.bytes).cast(BigInteger))
        .join(stored_blobs, stored_blobs.c.task == tasks.c.id)
        .group_by(tasks.c.tenant, tasks.c.id)
        .having(func.sum(stored_blobs.c.bytes) > 0)
        .order_by(tasks.c.id)
    )
    written = insert(ledger).from_select(["tenant", "task", "kind", "number", "tokens"], stored).on_conflict_do_nothing()
    of_tasks = (await connection.execute(written.returning(ledger.c.id))).all()
    return len(of_tasks) + await _record_packages(connection)


async def _record_packages(connection: AsyncConnection) -> int:
    """Record the bytes of tenants' packages; called after the ledger insert, which waits for concurrent changes of prices."""
    each = func.coalesce(func.unit_price("stored_byte_hours", None, func.now()), 0)
    day, size = cast(func.timezone("UTC", func.now()), Date), func.sum(packages.c.size_bytes)
    stored = (
        select(packages.c.tenant, day, _HOUR, size, size * each)
        .where(packages.c.state != PackageState.UPLOADING)  # not in the blob store yet
        .group_by(packages.c.tenant)
        .order_by(packages.c.tenant)
    )
    new = insert(package_usage).from_select(["tenant", "day", "hour", "quantity", "money"], stored)
    sums = {name: package_usage.c[name] + new.excluded[name] for name in ("quantity", "money")}
    counted = new.on_conflict_do_update(
        index_elements=[package_usage.c.tenant, package_usage.c.day],
        set_={"hour": new.excluded.hour, **sums},
        where=package_usage.c.hour < new.excluded.hour,
    )
    return len((await connection.execute(counted.returning(package_usage.c.tenant))).all())
