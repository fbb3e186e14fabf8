"""Invoices and prices."""

from datetime import date

from common import streams
from common.bus import Outgoing
from common.messages import AskInvoice, AskPrices, InvoiceAnswer, InvoiceLine, PriceOf, PricesAnswer, SetPrice
from marlaas.door.answers import answer_to
from marlaas.door.asking import Door
from marlaas.errors import ClientError, rejection_reasons


async def read_invoice(door: Door, first: date | None, last: date | None) -> list[InvoiceLine]:
    """Lines from day `first` to day `last`, in UTC, by day, tenant, pool and kind. Raises: ClientError; NoAnswer."""
    lines, cursor = list[InvoiceLine](), 0
    while True:
        page = await door.ask("invoice", AskInvoice(first=first, last=last, cursor=cursor), InvoiceAnswer)
        lines += page.lines
        if page.cursor is None:
            return lines
        cursor = page.cursor


async def read_prices(door: Door) -> list[PriceOf]:
    """Every price that there is or was. Raises: ClientError; NoAnswer."""
    return (await door.ask("prices", AskPrices(), PricesAnswer)).prices


async def set_price(door: Door, request: SetPrice, timeout_s: float) -> None:
    """Append a price. Raises: ClientError with the reasons; NoAnswer."""
    out = Outgoing(streams.set_price(), request, f"set-price:{request.request}")
    answer = await answer_to(door, out, streams.EVERY_TENANT, "none", lambda event: event.data.get("request") == request.request, timeout_s)
    if "reasons" in answer.data:
        raise ClientError("; ".join(rejection_reasons(answer)))
