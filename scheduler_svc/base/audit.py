"""The audit log: rows written in the transaction of each effect, and read by asks. Rows are immutable except for the count of refusals.

No row contains tenants' content: no names, reasons, options or texts. Ids of tasks, names of tenants and public keys are not content.
"""

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import get_args

from pydantic import JsonValue
from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.caches import LRUCache
from common.limits import LIMITS
from common.messages import AuditLine
from common.messages.tenancy.access import Reason, Via
from common.messages.verbs import JOBS

PUBLIC_KEY = re.compile(r"U[A-Z2-7]{55}")
DOWNLOADS = ("adapter", "chunk")
"""Asks that are audited: one row per download."""
NOTHING: Mapping[str, JsonValue] = {}
REASONS: tuple[Reason, ...] = get_args(Reason)


@dataclass(frozen=True)
class Actor:
    """Sender of a request, and the request's verb."""

    tenant: str
    """Tenant in the subject; `streams.EVERY_TENANT` for operators' requests about all tenants."""
    verb: str
    via: Via
    key: str = ""
    """Public key; empty if the subject names none."""
    host: str = ""
    job: int | None = None
    """Stream sequence of the job, which identifies redeliveries; None if the request is not a job."""


@dataclass(frozen=True)
class Accepted:
    """An action that took effect, or was accepted and then rejected."""

    by: Actor
    verb: str
    target: str
    detail: Mapping[str, JsonValue]
    rejected_for: Reason | None = None
    """Reason of the rejection; None if the action was not rejected."""


@dataclass(frozen=True)
class Refused:
    by: Actor
    reason: Reason


def accepted(by: Actor, target: str, detail: Mapping[str, JsonValue] = NOTHING, *, verb: str = "") -> Accepted:
    """Entry of an accepted action. `verb`: overrides the actor's verb, for a job with several effects."""
    return Accepted(by, verb or by.verb, target, detail)


def rejected(tenant: str, task: str, reason: Reason) -> Accepted:
    """Entry of a task whose submission was accepted and whose environment check then rejected it."""
    return Accepted(Actor(tenant, "submit", "scheduler"), "submit", task, NOTHING, reason)


def refused(by: Actor, sentence: str) -> Refused:
    """Entry of a refused request. `sentence`: the reason; only the `Reason` that its first word names is stored."""
    begin = re.split(r"[.:\[ ]", sentence, maxsplit=1)[0]
    if begin in LIMITS:
        return Refused(by, "limit")
    named: dict[str, Reason] = {known: known for known in REASONS}
    return Refused(by, named.get(begin, "invalid"))


def actor_of(subject: str, sequence: int | None) -> Actor:
    """Sender of the job `jobs.<verb>.<tenant>[.<key>]`. On a NATS server with keys, only that key may send to the longer subject."""
    _, verb, tenant, key = (streams.token(subject, place) or "" for place in range(4))
    known = key if PUBLIC_KEY.fullmatch(key) else ""
    shown = verb if verb in JOBS else "unknown"
    return Actor(tenant, shown, "key" if known else "short form", known, job=sequence)


# Subjects may name any tenant: the name is stored only if the tenant exists.
_TENANT = (
    f"CASE WHEN e.tenant = '{streams.EVERY_TENANT}' THEN e.tenant ELSE coalesce((SELECT id FROM tenants t WHERE t.id = e.tenant), '') END"
)
_ENTRIES = """
unnest(CAST(:tenant AS text[]), CAST(:key AS text[]), CAST(:via AS text[]), CAST(:host AS text[]), CAST(:verb AS text[]),
       CAST(:target AS text[]), CAST(:detail AS text[]), CAST(:job AS bigint[]), CAST(:reason AS text[]))
    WITH ORDINALITY AS e (tenant, key, via, host, verb, target, detail, job, reason, place)"""
_ACCEPT = text(f"""
INSERT INTO audit (tenant, key, via, host, verb, target, outcome, reason, detail, job)
SELECT {_TENANT}, e.key, e.via, e.host, e.verb, e.target, CASE e.reason WHEN '' THEN 'accepted' ELSE 'rejected' END, e.reason,
       CAST(e.detail AS jsonb), e.job FROM {_ENTRIES}
WHERE NOT EXISTS (SELECT FROM audit a WHERE a.job = e.job AND a.verb = e.verb AND a.target = e.target AND a.key = e.key
                  AND a.at > now() - interval '1 hour')
  AND NOT (e.verb = 'chunk' AND EXISTS (SELECT FROM audit a WHERE a.target = e.target AND a.key = e.key AND a.verb IN ('adapter', 'chunk')
                                        AND a.outcome = 'accepted' AND a.at > now() - interval '1 hour'))
ORDER BY e.place
""")
# ORDER BY: rows are locked in one order.
_REFUSE = text(f"""
INSERT INTO audit (tenant, key, via, host, verb, target, outcome, reason, hour, count)
SELECT found.tenant, key, min(via), min(host), verb, '', 'refused', reason, date_trunc('hour', now()), count(*)
FROM (SELECT {_TENANT} AS tenant, e.key, e.via, e.host, e.verb, e.reason FROM {_ENTRIES}) found
GROUP BY found.tenant, key, verb, reason ORDER BY found.tenant, key, verb, reason
ON CONFLICT (tenant, key, verb, reason, hour) WHERE hour IS NOT NULL DO UPDATE SET count = audit.count + excluded.count
""")


async def write(connection: AsyncConnection, entries: Sequence[Accepted | Refused]) -> None:
    """Insert entries. A job redelivered within an hour, and a further chunk of a download, add no row. A refusal increments a count."""
    done = [
        (one.by, one.verb, one.target, json.dumps(dict(one.detail)), one.rejected_for or "") for one in entries if isinstance(one, Accepted)
    ]
    not_done = [(one.by, one.by.verb, "", "{}", one.reason) for one in entries if isinstance(one, Refused)]
    for statement, rows in ((_ACCEPT, done), (_REFUSE, not_done)):
        if rows:
            named = {name: [getattr(by, name) for by, *_ in rows] for name in ("tenant", "key", "via", "host", "job")}
            named |= {name: [row[place] for row in rows] for place, name in enumerate(("verb", "target", "detail", "reason"), 1)}
            await connection.execute(statement, named)


_OF_ALL = "a.id > :after"
_OF_ONE = f"{_OF_ALL} AND a.tenant = :tenant"


def _reading(which: str) -> TextClause:
    return text(f"""
SELECT a.id AS number, a.at, a.tenant, nullif(a.key, '') AS key, k.name, a.via, a.host, a.verb, a.target, a.outcome,
       nullif(a.reason, '') AS reason, a.count, a.detail
FROM audit a LEFT JOIN keys k ON k.key = a.key AND (k.tenant = a.tenant OR k.tenant IS NULL AND CAST(:tenant AS text) IS NULL)
WHERE {which} AND (CAST(:since AS timestamptz) IS NULL OR coalesce(a.hour + interval '1 hour', a.at) >= :since)
ORDER BY a.id LIMIT :most
""")


_READ_ALL, _READ_ONE = _reading(_OF_ALL), _reading(_OF_ONE)


async def lines(connection: AsyncConnection, tenant: str | None, since: datetime | None, *, after: int, most: int) -> list[AuditLine]:
    """Up to `most` audit rows after number `after`. `tenant`: None for all; `since`: minimum time, None for any."""
    given = {"tenant": tenant, "since": since, "after": after, "most": most}
    return [
        AuditLine.model_validate(dict(row))
        for row in (await connection.execute(_READ_ALL if tenant is None else _READ_ONE, given)).mappings()
    ]


REMEMBERED_S = 60.0
"""Seconds for which a recorded download is trusted without a query: a restored database may have lost its row."""
MAX_DOWNLOADS = 4096

Download = tuple[str, str]
"""(public key of the client, name of the adapter)."""


class Downloads:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._recorded: LRUCache[Download, float] = LRUCache(MAX_DOWNLOADS)

    def are_recorded(self, download: Download) -> bool:
        return self._clock() < (self._recorded.peek(download) or 0.0)

    def record(self, download: Download) -> None:
        """Mark a download as recorded; call it once its row is committed."""
        self._recorded.put(download, self._clock() + REMEMBERED_S)
