"""Handles jobs on webhooks, URLs of a tenant that receive ends of tasks and budget events, and answers asks about them.

Answers to jobs never contain the URL or the secret: members receive events, and only owners may see these.
"""

import structlog

from common.bus import Delivery
from common.errors import Reject
from common.messages import MAX_WEBHOOKS, AskWebhooks, DeleteWebhook, SetWebhook, WebhooksAnswer
from scheduler_svc.base import webhook_deliveries as webhooks
from scheduler_svc.base.audit import Actor, accepted, refused
from scheduler_svc.base.context import HandlerContext, sender_of
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy.question import Question, cursor_of_names, names_after, page
from scheduler_svc.tenancy.webhooks.addresses import parse_url
from scheduler_svc.tenancy.webhooks.signing import key_of, seal

log = structlog.get_logger()


async def set_webhook(context: HandlerContext, delivery: Delivery) -> None:
    """Handle a job of `jobs.set-webhook.<tenant>`. Raises: Reject if it cannot be decoded; Retry if PostgreSQL is unavailable."""
    job, by = delivery.read(SetWebhook), sender_of(delivery)
    async with context.transaction() as tx:
        if (objection := await _objection(tx, context, job)) is not None:
            _refuse(tx, by, job, "invalid", objection)
            return
        sealed = seal(context.webhooks.sealing_key, (job.tenant, job.name), key_of(job.secret))
        has_secret = True
        if await webhooks.request_of(tx.connection, job.tenant, job.name) != job.request:
            row = (job.tenant, job.name, job.url, job.events, job.request, sealed)
            has_secret = await webhooks.put(tx.connection, *row, new_secret=job.new_secret)
            tx.record(accepted(by, job.tenant))
            log.info("webhook_set", tenant=job.tenant, events=job.events)
        answer = {"request": job.request, "name": job.name, "new_secret": has_secret, "deleted": False}
        tx.emit_event(job.tenant, "none", "webhook", {**answer})


async def _objection(tx: Transaction, context: HandlerContext, job: SetWebhook) -> str | None:
    try:
        parse_url(job.url, context.webhooks.policy)
    except Reject as error:
        return str(error)
    is_kept = await webhooks.lock_tenant(tx.connection, job.tenant)
    if is_kept is None:
        return f"tenant: no tenant '{job.tenant}'; there is one from its first task on"
    if not is_kept:
        return f"tenant: '{job.tenant}' is deleted"
    is_new = await webhooks.request_of(tx.connection, job.tenant, job.name) is None
    if is_new and await webhooks.count(tx.connection, job.tenant) >= MAX_WEBHOOKS:
        return f"name: the tenant has {MAX_WEBHOOKS} webhooks, which is the maximum; delete one first"
    return None


async def delete_webhook(context: HandlerContext, delivery: Delivery) -> None:
    """Handle a job of `jobs.delete-webhook.<tenant>`. Raises: Reject if it cannot be decoded; Retry if PostgreSQL is unavailable."""
    job, by = delivery.read(DeleteWebhook), sender_of(delivery)
    async with context.transaction() as tx:
        if not await webhooks.remove(tx.connection, job.tenant, job.name):
            _refuse(tx, by, job, "unknown", f"webhook: no webhook '{job.name}' of tenant '{job.tenant}'")
            return
        tx.record(accepted(by, job.tenant))
        log.info("webhook_deleted", tenant=job.tenant)
        tx.emit_event(job.tenant, "none", "webhook", {"request": job.request, "name": job.name, "deleted": True})


def _refuse(tx: Transaction, by: Actor, job: SetWebhook | DeleteWebhook, code: str, reason: str) -> None:
    tx.record(refused(by, reason))
    tx.emit_event(job.tenant, "none", "webhook", {"request": job.request, "code": code, "reasons": [reason]})


PAGE_SIZE = 20
"""Maximum webhooks per page."""


async def answer_webhooks(question: Question, request: AskWebhooks) -> WebhooksAnswer:
    async with question.reading() as connection:
        found = await webhooks.page(connection, question.tenant, request.name, names_after(request.after), most=PAGE_SIZE)
    kept = page(found)
    return WebhooksAnswer(webhooks=kept, cursor=cursor_of_names(kept, len(found), PAGE_SIZE))
