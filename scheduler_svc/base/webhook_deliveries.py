"""Queries on webhooks. Deliveries are written in the event's transaction, so that none is lost or sent for a rolled-back event."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, delete, func, select, text, update
from sqlalchemy.dialects.postgresql import insert as insert_or
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import DeliveryOf, Event, WebhookOf
from scheduler_svc.base.tables import tenants, webhook_deliveries, webhooks

MAX_WAITING = 1000
"""Maximum waiting messages per webhook."""
KEPT = 50
"""Maximum delivered or given-up messages kept per webhook."""
SHOWN = 20
LEASE_S = 60.0
"""Seconds for which a replica leases a webhook: longer than an attempt."""


def wanted(event: Event) -> bool:
    """Whether webhooks receive the event. A `budget` event that only answers an operator who sets a budget is not sent."""
    return event.event in ("finished", "failed") or (event.event == "budget" and "reported" in event.data)


_ADD = text(f"""
WITH wanted AS (
    SELECT w.tenant, w.name, e.event, e.body,
           (SELECT count(*) FROM webhook_deliveries d WHERE d.tenant = w.tenant AND d.webhook = w.name AND d.state = 'waiting') AS waiting
    FROM unnest(CAST(:tenants AS text[]), CAST(:events AS text[]), CAST(:bodies AS text[])) AS e (tenant, event, body)
    JOIN webhooks w ON w.tenant = e.tenant AND w.events ? e.event
    FOR KEY SHARE OF w),  -- a webhook that is deleted meanwhile is left out: its foreign key would fail the transaction
added AS (
    INSERT INTO webhook_deliveries (tenant, webhook, event, body)
    SELECT tenant, name, event, body FROM wanted WHERE waiting < {MAX_WAITING})
UPDATE webhooks w SET dropped = dropped + d.count
FROM (SELECT tenant, name, count(*) FROM wanted WHERE waiting >= {MAX_WAITING} GROUP BY tenant, name) d
WHERE w.tenant = d.tenant AND w.name = d.name
""")


async def add_deliveries(connection: AsyncConnection, events: Sequence[Event]) -> None:
    """Insert a delivery for each webhook that subscribes to one of these events."""
    given = {"tenants": [one.tenant for one in events], "events": [one.event for one in events], "bodies": list(map(_body, events))}
    await connection.execute(_ADD, given)


def _body(event: Event) -> str:
    """Body in the format of Standard Webhooks: `type`, `timestamp` and `data`."""
    about = {"tenant": event.tenant} if event.event == "budget" else {"tenant": event.tenant, "task": event.task}
    kind = "budget" if event.event == "budget" else f"task.{event.event}"
    at = datetime.fromtimestamp(event.at_s, UTC).isoformat()
    return json.dumps({"type": kind, "timestamp": at, "data": {**event.data, **about}})


# ------------------------------------------------------------------------------------------------------------- changes


async def lock_tenant(connection: AsyncConnection, tenant: str) -> bool | None:
    """Lock the tenant, to serialize changes of its webhooks with its deletion; False if it is deleted, None if it does not exist."""
    statement = select(tenants.c.deleted_by.is_(None)).where(tenants.c.id == tenant).with_for_update(key_share=True)
    return (await connection.execute(statement)).scalar_one_or_none()


async def request_of(connection: AsyncConnection, tenant: str, name: str) -> str | None:
    """Id of the request that last changed the webhook; None if there is no such webhook."""
    statement = select(webhooks.c.request).where(webhooks.c.tenant == tenant, webhooks.c.name == name)
    return (await connection.execute(statement)).scalar_one_or_none()


async def count(connection: AsyncConnection, tenant: str) -> int:
    return int((await connection.execute(select(func.count()).where(webhooks.c.tenant == tenant))).scalar_one())


async def put(
    connection: AsyncConnection, tenant: str, name: str, url: str, events: Sequence[str], request: str, sealed: bytes, *, new_secret: bool
) -> bool:
    """Create or update a webhook; returns whether its stored secret is now `sealed`, which replaces an older one only with `new_secret`."""
    values: dict[str, Any] = {"url": url, "events": list(events), "request": request, "changed_at": func.now()}
    if new_secret:
        values["secret"] = sealed
    new = insert_or(webhooks).values(tenant=tenant, name=name, **(values | {"secret": sealed}))
    statement = new.on_conflict_do_update(index_elements=[webhooks.c.tenant, webhooks.c.name], set_=values)
    return (await connection.execute(statement.returning(webhooks.c.secret))).scalar_one() == sealed


async def remove(connection: AsyncConnection, tenant: str, name: str) -> bool:
    """Delete a webhook and its messages; False if it does not exist."""
    statement = delete(webhooks).where(webhooks.c.tenant == tenant, webhooks.c.name == name).returning(webhooks.c.name)
    return (await connection.execute(statement)).first() is not None


async def remove_all(connection: AsyncConnection, tenant: str) -> None:
    await connection.execute(delete(webhooks).where(webhooks.c.tenant == tenant))


# ------------------------------------------------------------------------------------------------------------- sending


@dataclass(frozen=True)
class Due:
    """A message to send now; this replica leases its webhook for LEASE_S."""

    id: int
    tenant: str
    webhook: str
    url: str
    sealed: bytes
    message: str
    body: str
    attempts: int
    """Number of earlier attempts."""


# One message per webhook at a time: limits connections to a slow receiver, and the sender's slots per webhook.
_TAKE = text(f"""
WITH free AS (
    SELECT w.tenant, w.name FROM webhooks w
    WHERE w.busy_until < now()
      AND EXISTS (SELECT FROM webhook_deliveries d
                  WHERE d.tenant = w.tenant AND d.webhook = w.name AND d.state = 'waiting' AND d.next_at <= now())
    ORDER BY w.busy_until, w.tenant, w.name LIMIT :most FOR UPDATE SKIP LOCKED),
taken AS (
    UPDATE webhooks w SET busy_until = now() + interval '{LEASE_S} s' FROM free f WHERE w.tenant = f.tenant AND w.name = f.name
    RETURNING w.tenant, w.name, w.url, w.secret)
SELECT d.id, t.tenant, t.name, t.url, t.secret, d.message, d.body, d.attempts
FROM taken t CROSS JOIN LATERAL (
    SELECT * FROM webhook_deliveries d
    WHERE d.tenant = t.tenant AND d.webhook = t.name AND d.state = 'waiting' AND d.next_at <= now() ORDER BY d.next_at, d.id LIMIT 1) d
""")


async def take(connection: AsyncConnection, *, most: int) -> list[Due]:
    """Lease up to `most` webhooks that have due messages; returns one message of each."""
    return [Due(*row) for row in (await connection.execute(_TAKE, {"most": most})).all()]


async def record(connection: AsyncConnection, sent: Due, status: int | None, reason: str, *, state: str, pause_s: float) -> None:
    """Record an attempt, and release its webhook. `pause_s`: seconds until the next attempt, if one follows."""
    values: Mapping[str, object] = {"state": state, "attempts": sent.attempts + 1, "status": status, "reason": reason}
    ended = {"ended_at": func.now()} if state != "waiting" else {"next_at": func.now() + func.make_interval(0, 0, 0, 0, 0, 0, pause_s)}
    waits = (webhook_deliveries.c.id == sent.id, webhook_deliveries.c.state == "waiting")
    await connection.execute(update(webhook_deliveries).where(*waits).values(**values, **ended))
    own = (webhooks.c.tenant == sent.tenant, webhooks.c.name == sent.webhook)
    await connection.execute(update(webhooks).where(*own).values(busy_until=func.clock_timestamp()))
    if state != "waiting":
        of_it = (webhook_deliveries.c.tenant == sent.tenant, webhook_deliveries.c.webhook == sent.webhook)
        over = select(webhook_deliveries.c.id).where(*of_it, webhook_deliveries.c.state != "waiting")
        over = over.order_by(webhook_deliveries.c.ended_at.desc(), webhook_deliveries.c.id.desc()).offset(KEPT)
        await connection.execute(delete(webhook_deliveries).where(webhook_deliveries.c.id.in_(over)))


# ------------------------------------------------------------------------------------------------------------- reading


async def page(connection: AsyncConnection, *where: ColumnElement[bool], most: int) -> list[WebhookOf]:
    """Webhooks of all tenants that meet the conditions, ordered by tenant and name, at most `most`, each with its latest messages."""
    columns = (webhooks.c.tenant, webhooks.c.name, webhooks.c.url, webhooks.c.events, webhooks.c.changed_at, webhooks.c.dropped)
    found = select(*columns).where(*where).order_by(webhooks.c.tenant, webhooks.c.name).limit(most)
    shown: list[WebhookOf] = []
    for row in (await connection.execute(found)).all():
        of_it = (webhook_deliveries.c.tenant == row.tenant, webhook_deliveries.c.webhook == row.name)
        waiting = select(func.count()).where(*of_it, webhook_deliveries.c.state == "waiting")
        latest = select(webhook_deliveries).where(*of_it).order_by(webhook_deliveries.c.id.desc()).limit(SHOWN)
        shown.append(
            WebhookOf(
                tenant=row.tenant,
                name=row.name,
                url=row.url,
                events=row.events,
                changed_s=row.changed_at.timestamp(),
                waiting=int((await connection.execute(waiting)).scalar_one()),
                dropped=row.dropped,
                deliveries=[
                    DeliveryOf(
                        id=one.message,
                        event=one.event,
                        state=one.state,
                        created_s=one.created_at.timestamp(),
                        attempts=one.attempts,
                        next_s=one.next_at.timestamp() if one.state == "waiting" else None,
                        status=one.status,
                        reason=one.reason,
                    )
                    for one in (await connection.execute(latest)).all()
                ],
            )
        )
    return shown
