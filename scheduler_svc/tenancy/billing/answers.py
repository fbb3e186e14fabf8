"""Answers about money: prices, budgets, and invoices by day."""

from common.messages import AskBudgets, AskInvoice, AskPrices, BudgetOf, BudgetsAnswer, InvoiceAnswer, PricesAnswer
from scheduler_svc.tenancy.billing import budgets, invoices, prices
from scheduler_svc.tenancy.question import Question, page

MOST = 500
"""Maximum lines of a page."""


async def answer_prices(question: Question, _: AskPrices) -> PricesAnswer:
    async with question.reading() as connection:
        return PricesAnswer(prices=await prices.all_prices(connection))


async def answer_budgets(question: Question, _: AskBudgets) -> BudgetsAnswer:
    async with question.reading() as connection:
        standings = await budgets.standings(connection, [question.tenant] if question.tenant else None)
    found = [one.budget for one in standings.found]
    names = BudgetOf.model_fields
    return BudgetsAnswer(budgets=[BudgetOf.model_validate({name: getattr(one, name) for name in names}) for one in found])


async def answer_invoice(question: Question, request: AskInvoice) -> InvoiceAnswer:
    async with question.reading() as connection:
        found = await invoices.invoice_lines(connection, question.tenant, request.first, request.last, after=request.cursor, most=MOST)
    kept = page(found)
    has_more = len(kept) < len(found) or len(found) == MOST
    return InvoiceAnswer(lines=kept, cursor=request.cursor + len(kept) if has_more else None)
