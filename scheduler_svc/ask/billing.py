"""Answers about money: prices, and invoices by day."""

from common.messages import AskInvoice, AskPrices, InvoiceAnswer, PricesAnswer
from scheduler_svc.ask.question import Question, page
from scheduler_svc.store.billing import invoices, prices

MOST = 500
"""Maximum lines of a page."""


async def answer_prices(question: Question, _: AskPrices) -> PricesAnswer:
    async with question.reading() as connection:
        return PricesAnswer(prices=await prices.all_prices(connection))


async def answer_invoice(question: Question, request: AskInvoice) -> InvoiceAnswer:
    async with question.reading() as connection:
        found = await invoices.invoice_lines(connection, question.tenant, request.first, request.last, after=request.cursor, most=MOST)
    kept = page(found)
    has_more = len(kept) < len(found) or len(found) == MOST
    return InvoiceAnswer(lines=kept, cursor=request.cursor + len(kept) if has_more else None)
