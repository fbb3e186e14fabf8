"""Invoices, prices and budgets."""

import secrets
from datetime import date
from decimal import Decimal
from typing import Literal

from common import streams
from common.bus import Outgoing
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
from marlaas.door.answers import answer_to
from marlaas.door.asking import Door
from marlaas.errors import ClientError, rejection_reasons

ANSWER_TIMEOUT_S = 60.0


class Billing:
    """What a client asks about money, for owners and the operator; only the operator sets anything.

    All methods raise ClientError when something is wrong or not permitted, NoAnswer when the scheduler does not answer.
    """

    def __init__(self, door: Door) -> None:
        self._door = door

    async def invoice(self, first: date | None = None, last: date | None = None) -> list[InvoiceLine]:
        """Quantities and money by day (UTC), tenant, pool and kind, deleted tasks included."""
        lines, cursor = list[InvoiceLine](), 0
        while True:
            page = await self._door.ask("invoice", AskInvoice(first=first, last=last, cursor=cursor), InvoiceAnswer)
            lines += page.lines
            if page.cursor is None:
                return lines
            cursor = page.cursor

    async def prices(self) -> list[PriceOf]:
        """Every price that there is or was."""
        return (await self._door.ask("prices", AskPrices(), PricesAnswer)).prices

    async def set_price(self, request: SetPrice) -> None:
        """Append a price."""
        await self._set(Outgoing(streams.set_price(), request, f"set-price:{request.request}"), streams.EVERY_TENANT, request.request)

    async def budgets(self) -> list[BudgetOf]:
        """Budgets, with what is spent and reserved in their present periods."""
        return (await self._door.ask("budgets", AskBudgets(), BudgetsAnswer)).budgets

    async def set_budget(
        self, tenant: str, period: Literal["day", "month", "total"], unit: Literal["tokens", "money"], amount: Decimal | None
    ) -> None:
        """Set a budget, or remove it (None). Tasks that a budget has paused go on as soon as it allows more."""
        request = SetBudget(tenant=tenant, request=secrets.token_hex(6), period=period, unit=unit, amount=amount)
        await self._set(Outgoing(streams.set_budget(tenant), request, f"set-budget:{request.request}"), tenant, request.request)

    async def _set(self, out: Outgoing, tenant: str, request: str) -> None:
        answer = await answer_to(self._door, out, tenant, "none", lambda event: event.data.get("request") == request, ANSWER_TIMEOUT_S)
        if "reasons" in answer.data:
            raise ClientError("; ".join(rejection_reasons(answer)))
