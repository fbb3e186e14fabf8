"""Handles jobs on webhooks, URLs of a tenant that receive ends of tasks and budget events, and answers asks about them.

Answers to jobs never contain the URL or the secret: answers are events, which members receive, and only owners may see URL and secret.
"""

import structlog

from common.errors import Reject
from common.messages import MAX_WEBHOOKS, AskWebhooks, DeleteWebhook, SetWebhook, WebhooksAnswer
from scheduler_svc.base import webhook_deliveries as webhooks
from scheduler_svc.base.audit import accepted
from scheduler_svc.base.tables import webhooks as rows
from scheduler_svc.tenancy.question import Question, named_rows, page_of_names
from scheduler_svc.tenancy.requests import Answering, Refusal
from scheduler_svc.tenancy.webhooks.addresses import parse_url
from scheduler_svc.tenancy.webhooks.signing import key_of, seal

log = structlog.get_logger()


async def set_webhook(answer: Answering, job: SetWebhook) -> None:
    """Handle a job of `jobs.set-webhook.<tenant>`. Raises: Refusal."""
    connection = answer.tx.connection
    await _check(answer, job)
    sealed = seal(answer.context.webhooks.sealing_key, (job.tenant, job.name), key_of(job.secret))
    has_secret = True
    if await webhooks.request_of(connection, job.tenant, job.name) != job.request:
        row = (job.tenant, job.name, job.url, job.events, job.request, sealed)
        has_secret = await webhooks.put(connection, *row, new_secret=job.new_secret)
        answer.tx.record(accepted(answer.by, job.tenant))
        log.info("webhook_set", tenant=job.tenant, events=job.events)
    answer.emit({"name": job.name, "new_secret": has_secret, "deleted": False})


async def _check(answer: Answering, job: SetWebhook) -> None:
    """Raises: Refusal."""
    connection = answer.tx.connection
    try:
        parse_url(job.url, answer.context.webhooks.policy)
    except Reject as error:
        raise Refusal(str(error), "invalid") from None
    is_kept = await webhooks.lock_tenant(connection, job.tenant)
    if is_kept is None:
        raise Refusal(f"tenant: no tenant '{job.tenant}'; there is one from its first task on", "invalid")
    if not is_kept:
        raise Refusal(f"tenant: '{job.tenant}' is deleted", "invalid")
    is_new = await webhooks.request_of(connection, job.tenant, job.name) is None
    if is_new and await webhooks.count(connection, job.tenant) >= MAX_WEBHOOKS:
        raise Refusal(f"name: the tenant has {MAX_WEBHOOKS} webhooks, which is the maximum; delete one first", "invalid")


async def delete_webhook(answer: Answering, job: DeleteWebhook) -> None:
    """Handle a job of `jobs.delete-webhook.<tenant>`. Raises: Refusal."""
    if not await webhooks.remove(answer.tx.connection, job.tenant, job.name):
        raise Refusal(f"webhook: no webhook '{job.name}' of tenant '{job.tenant}'", "unknown")
    answer.accept(job.tenant, {"name": job.name, "deleted": True})
    log.info("webhook_deleted", tenant=job.tenant)


PAGE_SIZE = 20
"""Maximum webhooks per page."""


async def answer_webhooks(question: Question, request: AskWebhooks) -> WebhooksAnswer:
    wanted = named_rows(rows, question.tenant, request)
    async with question.reading() as connection:
        found = await webhooks.page(connection, *wanted, most=PAGE_SIZE)
    kept, cursor = page_of_names(found, PAGE_SIZE)
    return WebhooksAnswer(webhooks=kept, cursor=cursor)
