"""Handles reports of served requests: each is booked once, and counts for its tenant's share."""

from collections import Counter
from collections.abc import Sequence

from common.bus import Delivery
from common.errors import Reject
from common.messages import ServingEnded
from scheduler_svc.base.context import HandlerContext
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy import shares
from scheduler_svc.tenancy.billing import served_sql as served
from scheduler_svc.tenancy.billing.served_sql import Usage


async def handle_served(context: HandlerContext, deliveries: Sequence[Delivery]) -> None:
    async with context.transaction() as tx:
        await requests_ended(tx, [delivery.read(ServingEnded) for delivery in deliveries])


async def requests_ended(tx: Transaction, ended: Sequence[ServingEnded]) -> None:
    """Book the requests among these that are not booked. Raises: Reject when one names a tenant that there never was."""
    if unknown := await served.unknown_tenants(tx.connection, {one.tenant for one in ended}):
        raise Reject(f"there is no tenant '{min(unknown)}' to book a served request for")
    new = await served.report(tx.connection, ended)
    await served.add_usage(tx.connection, usage_of(new))
    tokens: Counter[str] = Counter()
    for one in new:
        tokens[one.tenant] += one.prompt_tokens + one.sampled_tokens
    await shares.charge_tenants(tx.connection, {tenant: float(count) for tenant, count in tokens.items() if count})


def usage_of(ended: Sequence[ServingEnded]) -> list[Usage]:
    """Tokens by tenant, pool, task and kind; none of kinds without tokens."""
    found: Counter[tuple[str, str, str, str]] = Counter()
    for one in ended:
        of_it = (one.tenant, one.pool, one.task or "")
        found[*of_it, "served_prompt"] += one.prompt_tokens
        found[*of_it, "served_sampled"] += one.sampled_tokens
    return [Usage(*key, quantity) for key, quantity in found.items() if quantity]  # pyright: ignore[reportArgumentType]
