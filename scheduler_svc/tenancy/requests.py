"""Requests: jobs about no task. Each is recorded in the audit and answered by an event of its verb that repeats its id, `request`."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import JsonValue

from common import streams
from common.bus import Delivery
from common.messages.verbs import JOBS
from scheduler_svc.base.audit import NOTHING, Actor, accepted, refused
from scheduler_svc.base.context import HandlerContext, sender_of, verb_of
from scheduler_svc.base.transaction import Transaction

EVENTS = {
    "preview": "previewed",
    "prune": "pruned",
    "upload": "package",
    "upload-file": "package",
    "delete-package": "package-deleted",
    "set-alias": "alias",
    "delete-alias": "alias",
    "set-webhook": "webhook",
    "delete-webhook": "webhook",
    "set-tenant": "tenant",
    "delete-tenant": "tenant-deleted",
    "set-price": "price",
    "set-budget": "budget",
    "set-access": "access",
    "move-pool": "pool",
}
"""Event that answers each verb."""


class Request(Protocol):
    @property
    def request(self) -> str: ...


@dataclass(eq=False)
class Refusal(Exception):
    """A request that is refused and has no effect."""

    reason: str
    """Reason; begins with the invalid field."""
    code: Literal["unknown", "changed", "invalid"] | None = None
    """`unknown`: the tenant has no such task, version or resource; `changed`: the resource is not as expected."""


@dataclass(frozen=True)
class Answering:
    """A transaction that handles a request, and the request's answer."""

    context: HandlerContext
    tx: Transaction
    by: Actor
    tenant: str
    request: str

    def accept(self, target: str, data: Mapping[str, JsonValue], detail: Mapping[str, JsonValue] = NOTHING) -> None:
        """Answer with `data`, and record the request. `target`, `detail`: of the audit row."""
        self.tx.record(accepted(self.by, target, detail))
        self.emit(data)

    def refuse(self, refusal: Refusal) -> None:
        self.tx.record(refused(self.by, refusal.reason))
        code: dict[str, JsonValue] = {"code": refusal.code} if refusal.code else {}
        self.emit({**code, "reasons": [refusal.reason]})

    def emit(self, data: Mapping[str, JsonValue]) -> None:
        """Answer without an entry in the audit."""
        self.tx.emit_event(self.tenant, "none", EVENTS[self.by.verb], {"request": self.request, **data})


@asynccontextmanager
async def answering(context: HandlerContext, delivery: Delivery, job: Request) -> AsyncGenerator[Answering]:
    """A transaction for `job`; if a Refusal is raised inside, it becomes the job's answer."""
    async with context.transaction() as tx:
        answer = Answering(context, tx, sender_of(delivery), getattr(job, "tenant", None) or streams.EVERY_TENANT, job.request)
        try:
            yield answer
        except Refusal as refusal:
            answer.refuse(refusal)


def answered(handle: Callable[[Answering, Any], Awaitable[None]]) -> Callable[[HandlerContext, Delivery], Awaitable[None]]:
    """Handler of jobs that decodes each job and calls `handle` in `answering`. `Any`: a message of the verb's type in `JOBS`.

    The handler raises Reject if a job cannot be decoded; Retry if PostgreSQL is unavailable.
    """

    async def handle_job(context: HandlerContext, delivery: Delivery) -> None:
        job: Any = delivery.read(JOBS[verb_of(delivery)])
        async with answering(context, delivery, job) as answer:
            await handle(answer, job)

    return handle_job
