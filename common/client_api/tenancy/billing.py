"""Invoices, prices and budgets."""

import secrets
from datetime import date
from decimal import Decimal

from common import streams
from common.bus import Outgoing
from common.client_api.answers import result_of
from common.client_api.pages import at_cursor, pages
from common.client_api.protocol import AnyDoor
from common.messages import (
    AskBudgets,
    AskInvoice,
    AskPrices,
    BudgetOf,
    BudgetsAnswer,
    InvoiceAnswer,
    InvoiceLine,
    PriceOf,
    PricesAnswer,
    SetBudget,
    SetPrice,
)
from common.messages.tenancy.billing import Period, Unit

ANSWER_TIMEOUT_S = 60.0


class Billing:
    """What a client asks about money, for owners and the operator; only the operator sets anything.

    All methods raise ClientError when something is wrong or not permitted, NoAnswer when the scheduler does not answer.
    """

    def __init__(self, door: AnyDoor) -> None:
        self._door = door

    async def invoice(self, first: date | None = None, last: date | None = None) -> list[InvoiceLine]:
        """Quantities and money by day (UTC), tenant, pool and kind, deleted tasks included."""
        found = pages(self._door, "invoice", AskInvoice(first=first, last=last), InvoiceAnswer, at_cursor)
        return [line async for page in found for line in page.lines]

    async def prices(self) -> list[PriceOf]:
        """Every price that there is or was."""
        return (await self._door.ask("prices", AskPrices(), PricesAnswer)).prices

    async def set_price(self, request: SetPrice) -> None:
        """Append a price."""
        out = Outgoing(streams.set_price(), request, f"set-price:{request.request}")
        await result_of(self._door, out, streams.EVERY_TENANT, request.request, ANSWER_TIMEOUT_S)

    async def budgets(self) -> list[BudgetOf]:
        """Budgets, with what is spent and reserved in their present periods."""
        return (await self._door.ask("budgets", AskBudgets(), BudgetsAnswer)).budgets

    async def set_budget(self, tenant: str, period: Period, unit: Unit, amount: Decimal | None) -> None:
        """Set a budget, or remove it (None). Tasks that a budget has paused go on as soon as it allows more."""
        request = SetBudget(tenant=tenant, request=secrets.token_hex(6), period=period, unit=unit, amount=amount)
        out = Outgoing(streams.set_budget(tenant), request, f"set-budget:{request.request}")
        await result_of(self._door, out, tenant, request.request, ANSWER_TIMEOUT_S)
