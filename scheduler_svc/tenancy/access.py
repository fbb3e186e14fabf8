"""Handles operators' jobs on accounts and keys, and answers asks about them and about the audit.

The operator's command updates NATS itself, since it has the signing keys.
"""

import structlog

from common import streams
from common.bus import Bus
from common.errors import Reject, Undeclared
from common.messages import AccessAnswer, AskAccess, AskAudit, AuditAnswer, SetAccess
from scheduler_svc.base import audit
from scheduler_svc.base.audit import accepted
from scheduler_svc.tenancy import keys
from scheduler_svc.tenancy.question import Question, page
from scheduler_svc.tenancy.requests import Answering, Refusal

FULL_SHARE = 0.9
"""Fill level of the HTTP keys' bucket from which no key is added. A full bucket would block the outbox."""
TENANTS_PAGE_SIZE, AUDIT_PAGE_SIZE = 50, 500
"""Maximum tenants, and audit rows, per page."""

log = structlog.get_logger()


async def set_access(answer: Answering, request: SetAccess) -> None:
    """Handle a job of `jobs.set-access.<tenant>`. Raises: Refusal."""
    try:
        await _refuse_without_room(answer.context.bus, request)
        effects = await keys.set_access(answer.tx, request)
        if request.tenant and request.account:
            await _declare_jobs(answer.context.bus, request.tenant)
    except Reject as error:
        raise Refusal(str(error)) from None
    answer.tx.record(*(accepted(answer.by, one.target, one.detail, verb=one.verb) for one in effects))
    answer.emit({})
    changes = {"account": request.account, "revoked": request.revoke, "suspended": request.suspended}
    log.info("access_set", tenant=answer.tenant, added=request.add and request.add.key, **changes)


async def _declare_jobs(bus: Bus, tenant: str) -> None:
    """Declare the tenant's job stream before NATS knows its account, so that its keys' jobs are stored. Raises: Reject; Unavailable."""
    try:
        await bus.own_jobs.declare([tenant])
    except Undeclared as error:
        raise Reject(f"tenant: '{tenant}' can send no jobs: {error}") from None


async def _refuse_without_room(bus: Bus, request: SetAccess) -> None:
    """Raises: Reject if there is no room for an HTTP key; Unavailable if NATS is."""
    if request.add is None or request.add.http is None:
        return
    if await bus.kv.filled_share(streams.HTTP_KEYS_BUCKET) >= FULL_SHARE:
        raise Reject("key: there is no room for another HTTP key; revoke some, or raise MARLAAS_NATS_STREAMS_BYTES")


async def answer_access(question: Question, request: AskAccess) -> AccessAnswer:
    async with question.reading() as connection:
        found = await keys.accesses(connection, question.tenant, after=request.cursor, most=TENANTS_PAGE_SIZE)
    kept, has_more = page(found, TENANTS_PAGE_SIZE)
    return AccessAnswer(tenants=kept, cursor=kept[-1].tenant if has_more and question.tenant is None else None)


async def answer_audit(question: Question, request: AskAudit) -> AuditAnswer:
    async with question.reading() as connection:
        found = await audit.lines(connection, question.tenant, request.since, after=request.cursor, most=AUDIT_PAGE_SIZE)
    kept, has_more = page(found, AUDIT_PAGE_SIZE)
    return AuditAnswer(lines=kept, cursor=kept[-1].number if has_more else None)
