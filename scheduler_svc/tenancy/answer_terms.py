"""Answers to gateways: what a tenant's HTTP requests may use, and whether its budgets have anything left."""

from common.errors import Reject
from common.messages import AskTerms, SpentBudget, TermsAnswer
from scheduler_svc.tenancy import limits, tenants
from scheduler_svc.tenancy.billing import budgets
from scheduler_svc.tenancy.question import Question


async def answer_terms(question: Question, _: AskTerms) -> TermsAnswer:
    """Raises: Reject where no tenant is named; Unavailable."""
    if question.tenant is None:
        raise Reject("terms are of one tenant: name it")
    async with question.reading() as connection:
        weight = await tenants.weight_of(connection, question.tenant)
        if weight is None:
            return TermsAnswer(is_known=False)
        spent = [
            SpentBudget(unit=one.unit, period=one.period, amount=one.amount, spent=one.spent, until=one.ends)
            for one in await budgets.used_up(connection, question.tenant)
        ]
        if (tokens := await limits.tokens_used_up(connection, question.tenant)) is not None:
            spent.append(SpentBudget(unit="tokens", period="total", amount=tokens.most, spent=tokens.used, until=None))
        return TermsAnswer(is_known=True, weight=weight, limits={**await limits.http_limits(connection, question.tenant)}, spent=spent)
