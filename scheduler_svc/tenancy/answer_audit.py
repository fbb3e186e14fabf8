"""Answers about the audit."""

from common.messages import AskAudit, AuditAnswer
from scheduler_svc.base import audit
from scheduler_svc.tenancy.question import Question, page

MOST = 500
"""Maximum lines of a page."""


async def answer_audit(question: Question, request: AskAudit) -> AuditAnswer:
    async with question.reading() as connection:
        found = await audit.lines(connection, question.tenant, request.since, after=request.cursor, most=MOST)
    kept = page(found)
    has_more = len(kept) < len(found) or len(found) == MOST
    return AuditAnswer(lines=kept, cursor=kept[-1].number if has_more else None)
