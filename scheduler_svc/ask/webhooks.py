"""Answers about webhooks."""

from common.messages import AskWebhooks, WebhooksAnswer
from scheduler_svc.ask.question import Question, page
from scheduler_svc.store.queries import webhooks

MOST = 20
"""Maximum webhooks of a page."""


async def answer_webhooks(question: Question, request: AskWebhooks) -> WebhooksAnswer:
    tenant, _, name = request.after.partition("/")
    async with question.reading() as connection:
        found = await webhooks.page(connection, question.tenant, request.name, (tenant, name), most=MOST)
    kept = page(found)
    has_more = len(kept) < len(found) or len(found) == MOST
    return WebhooksAnswer(webhooks=kept, cursor=f"{kept[-1].tenant}/{kept[-1].name}" if has_more else None)
