"""Answers about webhooks."""

from common.messages import AskWebhooks, WebhooksAnswer
from scheduler_svc.base import webhook_deliveries as webhooks
from scheduler_svc.tenancy.question import Question, cursor_of_names, names_after, page

MOST = 20
"""Maximum webhooks of a page."""


async def answer_webhooks(question: Question, request: AskWebhooks) -> WebhooksAnswer:
    async with question.reading() as connection:
        found = await webhooks.page(connection, question.tenant, request.name, names_after(request.after), most=MOST)
    kept = page(found)
    return WebhooksAnswer(webhooks=kept, cursor=cursor_of_names(kept, len(found), MOST))
