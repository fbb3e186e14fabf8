"""Requests of operators and owners about tenants: their limits, deletion, audit, and money. Answers are events about no task."""

import secrets
from datetime import date, datetime
from decimal import Decimal

from pydantic import JsonValue

from common.client_api.asking import result_of
from common.client_api.protocol import AnyDoor, at_cursor, pages
from common.messages import (
    AskAudit,
    AskBudgets,
    AskInvoice,
    AskPrices,
    AuditAnswer,
    AuditLine,
    BudgetOf,
    BudgetsAnswer,
    DeleteTenant,
    InvoiceAnswer,
    InvoiceLine,
    PriceOf,
    PricesAnswer,
    SetBudget,
    SetPrice,
    SetTenant,
)
from common.messages.tenancy.billing import Period, Unit


async def set_tenant(door: AnyDoor, request: SetTenant, timeout_s: float) -> dict[str, JsonValue]:
    """See `Client.set_tenant`."""
    return await result_of(door, "set-tenant", request.tenant, request, request.request, timeout_s)


async def delete_tenant(door: AnyDoor, tenant: str, timeout_s: float) -> dict[str, JsonValue]:
    """See `Client.delete_tenant`."""
    request = DeleteTenant(tenant=tenant, request=secrets.token_hex(6))
    return await result_of(door, "delete-tenant", tenant, request, request.request, timeout_s)


async def read_audit(door: AnyDoor, tenant: str | None, since: datetime | None) -> list[AuditLine]:
    """Every audit line of `tenant`, or of the door's own, oldest first. Raises: ClientError; NoAnswer."""
    found = pages(door, "audit", AskAudit(since=since), AuditAnswer, at_cursor, tenant=tenant)
    return [line async for page in found for line in page.lines]


ANSWER_TIMEOUT_S = 60.0


class Billing:
    """Invoices, prices and budgets: read by owners and the operator, set by the operator only.

    All methods raise ClientError if a request is wrong or not permitted, NoAnswer if the scheduler does not answer.
    """

    def __init__(self, door: AnyDoor) -> None:
        self._door = door

    async def invoice(self, first: date | None = None, last: date | None = None) -> list[InvoiceLine]:
        """Quantities and money by day (UTC), tenant, pool and kind, deleted tasks included."""
        found = pages(self._door, "invoice", AskInvoice(first=first, last=last), InvoiceAnswer, at_cursor)
        return [line async for page in found for line in page.lines]

    async def prices(self) -> list[PriceOf]:
        """Every current and past price."""
        return (await self._door.ask("prices", AskPrices(), PricesAnswer)).prices

    async def set_price(self, request: SetPrice) -> None:
        """Append a price."""
        await result_of(self._door, "set-price", None, request, request.request, ANSWER_TIMEOUT_S)

    async def budgets(self) -> list[BudgetOf]:
        """Budgets, with the amounts spent and reserved in their current periods."""
        return (await self._door.ask("budgets", AskBudgets(), BudgetsAnswer)).budgets

    async def set_budget(self, tenant: str, period: Period, unit: Unit, amount: Decimal | None) -> None:
        """Set a budget, or remove it (`amount` None). A task that a budget has paused continues as soon as that budget allows it."""
        request = SetBudget(tenant=tenant, request=secrets.token_hex(6), period=period, unit=unit, amount=amount)
        await result_of(self._door, "set-budget", tenant, request, request.request, ANSWER_TIMEOUT_S)
