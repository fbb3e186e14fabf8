"""Queries on served requests: each is booked once, for its tenant's day, at the price of that moment.

Nothing of a task changes: its limits are about training, and admission, which locks tasks, waits for no request.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import BigInteger, Date, Integer, Text, cast, delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import ServingEnded
from common.messages.tenancy.billing import ServedKind
from scheduler_svc.base.sql import Rows, Statement, any_of
from scheduler_svc.base.tables import served_requests, served_usage, tenants

KEPT_DAYS = 7
"""Days, beside the present one, of which requests are kept; NATS redelivers a report for 3 days at most."""


class Usage(NamedTuple):
    """Tokens to add to one tenant's day, in the order of the table's key."""

    tenant: str
    pool: str
    task: str
    """Empty for the base model."""
    kind: ServedKind
    quantity: int


_COLUMNS = {
    "request": Text, "tenant": Text, "key": Text, "pool": Text, "task": Text, "version": Integer, "attempt": Integer,
    "prompt_tokens": Integer, "cached_tokens": Integer, "sampled_tokens": Integer,
}  # fmt: skip
_ended = Rows("ended", **_COLUMNS)
# In one order, so that replicas that book the same requests do not wait for each other in a circle.
_given = select(*(_ended.c[name] for name in _COLUMNS)).order_by(_ended.c.request)
_REPORT = Statement(
    insert(served_requests).from_select(list(_COLUMNS), _given).on_conflict_do_nothing().returning(served_requests.c.request)
)

_used = Rows("used", tenant=Text, pool=Text, task=Text, kind=Text, quantity=BigInteger)
_money = _used.c.quantity * func.coalesce(func.unit_price(_used.c.kind, _used.c.pool, func.now()), 0)
_today = cast(func.timezone("UTC", func.now()), Date)
_priced = select(_used.c.tenant, _today, _used.c.pool, _used.c.task, _used.c.kind, _used.c.quantity, _money).order_by(
    _used.c.tenant, _used.c.pool, _used.c.task, _used.c.kind
)
_new = insert(served_usage).from_select(["tenant", "day", "pool", "task", "kind", "quantity", "money"], _priced)
_ADD = Statement(
    _new.on_conflict_do_update(
        index_elements=list(served_usage.primary_key),
        set_={name: served_usage.c[name] + _new.excluded[name] for name in ("quantity", "money")},
    )
)
_KNOWN = Statement(select(tenants.c.id).where(tenants.c.id == any_of("named")))


async def unknown_tenants(connection: AsyncConnection, names: set[str]) -> set[str]:
    """Those among the names that are no tenant's; a deleted tenant stays one."""
    return names - {row.id for row in await _KNOWN.run(connection, {"named": sorted(names)})}


async def report(connection: AsyncConnection, ended: Sequence[ServingEnded]) -> list[ServingEnded]:
    """Write requests of tenants that there are; returns those that were not reported before, each once, the first of equals."""
    first = {one.request: one for one in reversed(ended)}
    rows = await _REPORT.run(connection, _ended.of([[getattr(one, name) for name in _COLUMNS] for one in first.values()]))
    return [first[row.request] for row in rows]


async def add_usage(connection: AsyncConnection, used: Sequence[Usage]) -> None:
    """Add tokens to today's, one entry a key. After `report`: that waits for prices that are being set."""
    if used:
        await _ADD.run(connection, _used.of(used))


async def forget_requests(connection: AsyncConnection) -> None:
    """Delete requests of days that are past by more than KEPT_DAYS; their tokens stay in `served_usage`."""
    begin = func.date_trunc("day", func.timezone("UTC", func.now())) - func.make_interval(0, 0, 0, KEPT_DAYS)
    await connection.execute(delete(served_requests).where(served_requests.c.at < func.timezone("UTC", begin)))
