"""Rates of requests: a token bucket per tenant and kind in PostgreSQL, shared by all replicas of the scheduler.

A bucket holds one minute's allowance of requests, and drains at that pace. Its row is locked until the transaction ends,
so a tenant's jobs are counted by one transaction at a time, exactly. Jobs beyond the rate are refused here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import structlog
from pydantic import JsonValue
from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.bus import Delivery
from common.limits import NO_LIMIT, Limit, sentence
from common.messages import (
    ControlTask,
    ResendLetter,
    SubmitTask,
)
from common.messages.jobs import TenantRequest
from common.messages.verbs import JOBS
from common.streams import EVERY_TENANT
from scheduler_svc.base.audit import refused
from scheduler_svc.base.context import sender_of, verb_of
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy.requests import EVENTS

RequestKind = Literal["jobs", "asks"]
ABOUT_TASKS: dict[str, type[SubmitTask | ControlTask]] = {"submit": SubmitTask} | dict.fromkeys(
    ("cancel", "pause", "resume", "delete"), ControlTask
)
COUNTED = {*JOBS} - {"set-tenant", "delete-tenant", "set-price", "set-budget", "set-access", "move-pool"}
"""Verbs that a rate counts. Operators' verbs are unlimited: one of them raises the limit."""
LIMIT_OF: dict[RequestKind, Limit] = {"jobs": "jobs_per_minute", "asks": "asks_per_minute"}

log = structlog.get_logger()


@dataclass(frozen=True)
class Grant:
    """Number of a tenant's requests that its rate permits, with the state of its bucket."""

    granted: int
    """Number of requests granted: so many of the first."""
    used: float = 0.0
    """Requests in the bucket, including those granted."""
    per_minute: int | None = None
    """Limit per minute; None: no limit."""

    def refusal(self, kind: RequestKind, tenant: str) -> str:
        """Reason for a request that is not granted."""
        assert self.per_minute is not None
        limit, missing = LIMIT_OF[kind], max(0.0, self.used + 1 - self.per_minute)
        wait = f" in {math.ceil(missing * 60 / self.per_minute)} s" if self.per_minute else ""
        return sentence(limit, self.per_minute, math.ceil(self.used), tenant, wait=wait)


def _taking(limit: Limit) -> TextClause:
    return text(f"""
WITH asked AS (
    SELECT n.id, cast(:wanted AS int) AS wanted, nullif(coalesce(own.{limit}, every.{limit}), {NO_LIMIT})::float8 AS allowed
    FROM tenants n LEFT JOIN limits own ON own.tenant = n.id LEFT JOIN limits every ON every.tenant = '{EVERY_TENANT}'
    WHERE n.id = :tenant)
INSERT INTO rates AS r (tenant, kind, used, granted, at)
SELECT id, :kind, least(wanted, allowed), least(wanted, allowed), clock_timestamp() FROM asked
ON CONFLICT (tenant, kind) DO UPDATE SET (used, granted, at) = (
    SELECT drained + fitting, fitting, clock_timestamp() FROM (
        SELECT drained, CASE WHEN allowed IS NULL THEN wanted ELSE least(wanted, greatest(0, floor(allowed - drained))) END::int AS fitting
        FROM asked CROSS JOIN LATERAL (
            SELECT CASE WHEN allowed IS NULL THEN 0
                   ELSE greatest(0, r.used - allowed / 60 * greatest(0, extract(epoch FROM clock_timestamp() - r.at))) END AS drained) d) f)
RETURNING granted, used, (SELECT allowed FROM asked) AS allowed""")


_TAKING = {kind: _taking(limit) for kind, limit in LIMIT_OF.items()}


async def take(connection: AsyncConnection, tenant: str, kind: RequestKind, wanted: int) -> Grant:
    """Count as many of the `wanted` requests as fit. An unknown tenant has no bucket, and is granted all."""
    row = (await connection.execute(_TAKING[kind], {"tenant": tenant, "kind": kind, "wanted": wanted})).first()
    if row is None:
        return Grant(wanted)
    return Grant(row.granted, row.used, None if row.allowed is None else int(row.allowed))


async def used_in(connection: AsyncConnection, tenant: str, per_minute: dict[RequestKind, int | None]) -> dict[Limit, int]:
    """Requests in the tenant's buckets now, rounded up."""
    query = text("SELECT kind, used, extract(epoch FROM now() - at)::float8 AS since FROM rates WHERE tenant = :tenant")
    found: dict[Limit, int] = {LIMIT_OF[kind]: 0 for kind in LIMIT_OF}
    for row in (await connection.execute(query, {"tenant": tenant})).all():
        pace = per_minute[row.kind]
        found[LIMIT_OF[row.kind]] = 0 if pace is None else max(0, math.ceil(row.used - pace / 60 * row.since))
    return found


async def within_rate(tx: Transaction, deliveries: Sequence[Delivery]) -> list[Delivery]:
    """The jobs that fit their tenants' rates; the others are refused. Raises: Reject if a refused job cannot be decoded."""
    taken = [delivery for delivery in deliveries if verb_of(delivery) not in COUNTED]
    counted = [delivery for delivery in deliveries if verb_of(delivery) in COUNTED]
    for tenant in sorted({_tenant(delivery) for delivery in counted}):
        own = [delivery for delivery in counted if _tenant(delivery) == tenant]
        grant = await take(tx.connection, tenant, "jobs", len(own))
        taken += own[: grant.granted]
        for delivery in own[grant.granted :]:
            log.info("job_refused", verb=verb_of(delivery), tenant=tenant, limit="jobs_per_minute")
            reason = grant.refusal("jobs", tenant)
            _refuse(tx, delivery, reason)
            tx.record(refused(sender_of(delivery), reason))
    return [delivery for delivery in deliveries if delivery in taken]


def _refuse(tx: Transaction, delivery: Delivery, reason: str) -> None:
    verb = verb_of(delivery)
    if verb in ABOUT_TASKS:
        job = delivery.read(ABOUT_TASKS[verb])
        of_verb: dict[str, JsonValue] = {"verb": verb} if verb == "delete" else {}
        tx.answer(job.tenant, job.task, "rejected", {**of_verb, "reasons": [reason]})  # no row: the id may be another tenant's
    elif verb == "resend":
        letter = delivery.read(ResendLetter)
        tx.emit_event(letter.tenant, "none", "rejected", {"letter": letter.letter, "reasons": [reason]})
    else:
        request, event = delivery.read(JOBS[verb]), EVENTS[verb]
        assert isinstance(request, TenantRequest)
        code: dict[str, JsonValue] = {"code": "busy"} if event in ("alias", "webhook") else {}
        tx.emit_event(request.tenant, "none", event, {"request": request.request, **code, "reasons": [reason]})


def _tenant(delivery: Delivery) -> str:
    return streams.token(delivery.subject, 2) or ""
