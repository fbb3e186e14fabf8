"""Answers about accounts and keys."""

from common.messages import AccessAnswer, AskAccess
from scheduler_svc.tenancy import keys
from scheduler_svc.tenancy.question import Question, page

MOST = 50
"""Maximum tenants of a page."""


async def answer_access(question: Question, request: AskAccess) -> AccessAnswer:
    async with question.reading() as connection:
        found = await keys.accesses(connection, question.tenant, after=request.cursor, most=MOST)
    kept = page(found)
    has_more = question.tenant is None and (len(kept) < len(found) or len(found) >= MOST)
    return AccessAnswer(tenants=kept, cursor=kept[-1].tenant if has_more else None)
