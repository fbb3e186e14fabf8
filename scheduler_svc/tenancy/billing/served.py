"""Handles reports of served requests: each is booked once, to its tenant's day, at the current price, and charged to the tenant's share.

No task row changes: tasks' limits are about training, and admission, which locks tasks, does not wait for requests.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import BigInteger, Date, Integer, Text, cast, delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common.bus import Delivery
from common.errors import Reject
from common.messages import ServingEnded
from common.messages.tenancy.billing import ServedKind
from scheduler_svc.base.context import HandlerContext
from scheduler_svc.base.sql import Rows, Statement, any_of
from scheduler_svc.base.tables import served_requests, served_usage, tenants
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy import shares

KEPT_DAYS = 7
"""Past days for which requests are kept; NATS redelivers a report for at most 3 days."""


class Usage(NamedTuple):
    """Tokens to add to one tenant's day. The fields are in the order of the table's key."""

    tenant: str
    pool: str
    task: str
    """Task; empty for the base model."""
    kind: ServedKind
    quantity: int


_COLUMNS = {
    "request": Text, "tenant": Text, "key": Text, "pool": Text, "task": Text, "version": Integer, "attempt": Integer,
    "prompt_tokens": Integer, "cached_tokens": Integer, "sampled_tokens": Integer,
}  # fmt: skip
_ended = Rows("ended", **_COLUMNS)
# In one order, so that replicas that book the same requests do not deadlock.
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


async def _report(connection: AsyncConnection, ended: Sequence[ServingEnded]) -> list[ServingEnded]:
    """Insert the requests' reports; returns the requests that were not reported before, the first of duplicates."""
    first = {one.request: one for one in reversed(ended)}
    rows = await _REPORT.run(connection, _ended.of([[getattr(one, name) for name in _COLUMNS] for one in first.values()]))
    return [first[row.request] for row in rows]


async def forget_requests(connection: AsyncConnection) -> None:
    """Delete requests older than KEPT_DAYS days; their tokens stay in `served_usage`."""
    begin = func.date_trunc("day", func.timezone("UTC", func.now())) - func.make_interval(0, 0, 0, KEPT_DAYS)
    await connection.execute(delete(served_requests).where(served_requests.c.at < func.timezone("UTC", begin)))


async def handle_served(context: HandlerContext, deliveries: Sequence[Delivery]) -> None:
    async with context.transaction() as tx:
        await requests_ended(tx, [delivery.read(ServingEnded) for delivery in deliveries])


async def requests_ended(tx: Transaction, ended: Sequence[ServingEnded]) -> None:
    """Book requests that are not booked yet. Raises: Reject if a request names a tenant that never existed."""
    named = {one.tenant for one in ended}  # rows of deleted tenants stay
    if unknown := named - {row.id for row in await _KNOWN.run(tx.connection, {"named": sorted(named)})}:
        raise Reject(f"there is no tenant '{min(unknown)}' to book a served request for")
    new = await _report(tx.connection, ended)
    if used := usage_of(new):  # after the report: this waits for concurrent changes of prices
        await _ADD.run(tx.connection, _used.of(used))
    tokens: Counter[str] = Counter()
    for one in new:
        tokens[one.tenant] += one.prompt_tokens + one.sampled_tokens
    await shares.charge_tenants(tx.connection, {tenant: float(count) for tenant, count in tokens.items() if count})


def usage_of(ended: Sequence[ServingEnded]) -> list[Usage]:
    """Tokens by tenant, pool, task and kind; omits kinds without tokens."""
    found: Counter[tuple[str, str, str, str]] = Counter()
    for one in ended:
        of_it = (one.tenant, one.pool, one.task or "")
        found[*of_it, "served_prompt"] += one.prompt_tokens
        found[*of_it, "served_sampled"] += one.sampled_tokens
    return [Usage(*key, quantity) for key, quantity in found.items() if quantity]  # pyright: ignore[reportArgumentType]
