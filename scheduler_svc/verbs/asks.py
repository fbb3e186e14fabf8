"""Answers asks: limits on concurrency, errors, and the table of verbs.

Asks of one tenant queue for its share of the replica's slots. Few asks use PostgreSQL concurrently, so that the scheduler's own work is
not delayed. A client with too many asks gets an error immediately.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from common import streams
from common.bus import Bus, NatsError, Request
from common.errors import MarlaasError, Reject, Retry
from common.messages import AskRefused, AskTerms, Message
from common.messages.asks import MAX_ANSWER_BYTES, MAX_ASK_BYTES
from common.messages.verbs import QUESTIONS
from common.spec import NAME_PATTERN
from common.streams import KIND_HEADER
from scheduler_svc.accelerators.asked import answer_executors, answer_moves, answer_slices, answer_trace
from scheduler_svc.base import metrics
from scheduler_svc.base.audit import DOWNLOADS, PUBLIC_KEY, Actor, Reason, Refused
from scheduler_svc.reading.adapters import answer_adapter, answer_chunk
from scheduler_svc.reading.deployment import answer_envs, answer_pools, answer_replicas
from scheduler_svc.reading.events import answer_events, answer_failures
from scheduler_svc.reading.progress import answer_evaluations, answer_samples, answer_spec, answer_steps, answer_timeline, answer_versions
from scheduler_svc.reading.tasks import answer_status, answer_tasks, answer_why
from scheduler_svc.reading.usage import answer_usage
from scheduler_svc.tenancy.access import answer_access, answer_audit
from scheduler_svc.tenancy.billing.budgets import answer_budgets, answer_terms
from scheduler_svc.tenancy.billing.prices import answer_invoice, answer_prices
from scheduler_svc.tenancy.question import Question, Sources, TooMany, Unknown
from scheduler_svc.tenancy.webhooks.jobs import answer_webhooks
from scheduler_svc.training.aliases import answer_aliases
from scheduler_svc.uploads.files import answer_file_chunk, answer_files

VERBS: dict[str, Callable[[Question, Any], Awaitable[Message]]] = {
    "tasks": answer_tasks,
    "status": answer_status,
    "events": answer_events,
    "usage": answer_usage,
    "why": answer_why,
    "invoice": answer_invoice,
    "prices": answer_prices,
    "budgets": answer_budgets,
    "access": answer_access,
    "audit": answer_audit,
    "failures": answer_failures,
    "envs": answer_envs,
    "files": answer_files,
    "file-chunk": answer_file_chunk,
    "pools": answer_pools,
    "replicas": answer_replicas,
    "spec": answer_spec,
    "steps": answer_steps,
    "evaluations": answer_evaluations,
    "versions": answer_versions,
    "terms": answer_terms,
    "samples": answer_samples,
    "timeline": answer_timeline,
    "aliases": answer_aliases,
    "webhooks": answer_webhooks,
    "adapter": answer_adapter,
    "chunk": answer_chunk,
    "executors": answer_executors,
    "slices": answer_slices,
    "moves": answer_moves,
    "trace": answer_trace,
}
"""Verb → function that answers it. `Any`: a message of the verb's type in `common/messages/verbs.py`, or `AskTerms`."""


MAX_CONCURRENT = 8
"""Maximum asks that a replica answers concurrently; the database pool has twice as many connections."""
MAX_CONCURRENT_PER_TENANT = 4
WAITING_PER_TENANT = 64
"""Maximum asks of a tenant, waiting or being answered."""
WAITING = 1024
"""Maximum asks of all tenants, waiting or being answered."""
TIMEOUT_S = 10.0
"""Maximum seconds until an answer, including the wait."""
CLIENT_HEADER = "Nats-Request-Info"
"""Header in which NATS identifies the client of a request from another account."""
ADDRESS = re.compile(r"[0-9A-Fa-f.:]{2,45}")

log = structlog.get_logger()


class Asks:
    def __init__(self, bus: Bus, sources: Sources, *, timeout_s: float = TIMEOUT_S) -> None:
        self._bus = bus
        self._sources = sources
        self._timeout_s = timeout_s
        self._waiting: Counter[str] = Counter()
        self._per_tenant: dict[str, asyncio.Semaphore] = {}
        self._concurrent = asyncio.Semaphore(MAX_CONCURRENT)

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as runners:
            async for request in self._bus.requests.requests(streams.ASKS, streams.ASK_QUEUE):
                tenant = streams.token(request.subject, 1) or ""
                if self._waiting[tenant] >= WAITING_PER_TENANT or self._waiting.total() >= WAITING:
                    metrics.ASKS.labels("busy").inc()
                    runners.create_task(self._reply(request, AskRefused(code="busy", reason="too many asks wait; ask again in a second")))
                else:
                    self._waiting[tenant] += 1
                    runners.create_task(self._in_turn(request, tenant))

    async def _in_turn(self, request: Request, tenant: str) -> None:
        place = self._per_tenant.setdefault(tenant, asyncio.Semaphore(MAX_CONCURRENT_PER_TENANT))
        try:
            async with asyncio.timeout(self._timeout_s), place, self._concurrent:
                answer = await self._answer(request, tenant)
        except TimeoutError:
            answer = AskRefused(code="unavailable", reason=f"no answer within {self._timeout_s:g} s; ask again later")
        finally:
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant]
                self._per_tenant.pop(tenant, None)
        metrics.ASKS.labels(answer.code if isinstance(answer, AskRefused) else "answered").inc()
        await self._reply(request, answer)

    async def _answer(self, request: Request, tenant: str) -> Message:
        try:
            return await self._answered(request, tenant)
        except TooMany as error:
            return AskRefused(code="busy", reason=str(error))
        except Reject as error:
            is_unknown = isinstance(error, Unknown)
            await self._count_refusal(request, "task" if is_unknown else "invalid")
            return AskRefused(code="unknown" if is_unknown else "invalid", reason=str(error))
        except Retry as error:  # the error's text names servers, which tenants must not see
            log.warning("ask_not_answered", subject=request.subject, error=str(error))
            return AskRefused(code="unavailable", reason="PostgreSQL or the blob store does not answer the scheduler; ask again later")
        except Exception:
            log.exception("ask_failed", subject=request.subject)
            return AskRefused(code="unavailable", reason="the scheduler failed to answer; its log says why")

    async def _answered(self, request: Request, tenant: str) -> Message:
        """Answer of the request's verb. Raises: Reject with the objection to the request."""
        name = streams.token(request.subject, 2) or ""
        answer = VERBS.get(name)
        if answer is None:
            raise Reject(f"no verb '{name[:40]}'; there are: {', '.join(VERBS)}")
        if tenant != streams.EVERY_TENANT and re.fullmatch(NAME_PATTERN, tenant) is None:
            raise Reject(f"'{tenant[:40]}' is no name of a tenant: small letters, digits and hyphens, 40 at most")
        if len(request.body) > MAX_ASK_BYTES:
            raise Reject(f"the request has {len(request.body)} bytes, the maximum is {MAX_ASK_BYTES}")
        wanted = QUESTIONS[name].request if name in QUESTIONS else AskTerms
        kind = request.headers.get(KIND_HEADER, wanted.kind)
        if kind != wanted.kind:
            raise Reject(f"'{name}' takes '{wanted.kind}', not '{kind[:40]}'")
        asked = wanted.decode(request.body or b"{}", by_user=True)
        question = Question(None if tenant == streams.EVERY_TENANT else tenant, self._sources, asker_of(request))
        await question.count()
        return await answer(question, asked)

    async def _count_refusal(self, request: Request, reason: Reason) -> None:
        """Count a refused download in the audit. The refusal itself does not depend on the count."""
        asker = asker_of(request)
        if asker.verb not in DOWNLOADS:
            return
        try:
            async with self._sources.database.transaction() as tx:
                tx.record(Refused(asker, reason))
        except Retry as error:
            log.warning("refusal_not_counted", subject=request.subject, error=str(error))

    async def _reply(self, request: Request, answer: Message) -> None:
        body = answer.model_dump_json().encode() if request.body[:1] in (b"", b"{") else answer.encode()
        if len(body) > MAX_ANSWER_BYTES:
            log.error("answer_too_large", subject=request.subject, bytes=len(body))
            refusal = AskRefused(code="unavailable", reason=f"the answer has {len(body)} bytes, the maximum is {MAX_ANSWER_BYTES}")
            return await self._reply(request, refusal)
        try:
            await request.reply(answer, body)
        except (MarlaasError, NatsError) as error:
            log.warning("answer_not_sent", subject=request.subject, error=str(error))
        return None


def asker_of(request: Request) -> Actor:
    """Sender of the request, for the audit. For requests from a tenant's account NATS writes the header, and no client can forge it."""
    tenant, verb = streams.token(request.subject, 1) or "", streams.token(request.subject, 2) or ""
    try:
        client = json.loads(request.headers.get(CLIENT_HEADER, "{}"))
        key, host = str(client.get("user", "")), str(client.get("host", ""))
    except (ValueError, AttributeError):
        key, host = "", ""
    return Actor(tenant, verb, "ask", key if PUBLIC_KEY.fullmatch(key) else "", host if ADDRESS.fullmatch(host) else "")
