"""Intake of jobs, fair by tenant: each tenant has its own queue of jobs, and the queues share this replica's slots.

A work queue has one order, so with one consumer a job waits behind every earlier job. Here a tenant has a consumer while it has jobs:
one runner takes them in order, a few at a time, and waits for a slot before it handles them. Slots are granted as in workers and
trainers (`common/fairness`), with equal weights, since tenants do not pay for handling jobs.

Jobs sent with a tenant's keys are in the tenant's own stream (ADR 43), which has one consumer; operators' jobs, and all jobs if
NATS requires no keys, are in JOBS.
NATS announces each job that it stores, but not jobs that it refuses; periodic polling finds jobs whose announcement this replica missed.
"""

import asyncio
import hashlib
import re
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

import structlog

from common import streams
from common.bus import Bus, Delivery
from common.errors import Undeclared
from common.fairness.fair_queue import Claimant
from common.fairness.fair_slots import FairSlots
from common.messages.verbs import JOBS
from common.periodic import run_forever
from common.spec import NAME_PATTERN
from common.streams import Consumer
from scheduler_svc.base.context import HandlerContext, verb_of
from scheduler_svc.tenancy import keys
from scheduler_svc.verbs.jobs import handle_jobs

BATCH_SIZE = 4
"""Maximum jobs of one tenant handled in one transaction."""
MAX_CONCURRENT_TENANTS = 4
"""Tenants whose jobs are handled concurrently: one job may be a deletion, which takes minutes."""
LOOK_EVERY_S = 2.0
"""Seconds between polls for waiting jobs."""
UNUSED_S = 10.0
"""Seconds without jobs after which a tenant's runner ends."""

log = structlog.get_logger()


class JobIntake:
    def __init__(self, bus: Bus, context: HandlerContext, *, unused_s: float = UNUSED_S) -> None:
        self._bus = bus
        self._context = context
        self._unused_s = unused_s
        self._slots = FairSlots(MAX_CONCURRENT_TENANTS)
        self._runners: dict[Consumer, asyncio.Task[None]] = {}
        self._used_s: dict[Consumer, float] = {}
        """Monotonic time at which each consumer last had jobs."""

    async def run(self) -> None:
        """Take jobs until cancelled. Raises: Fatal from a handler."""
        async with asyncio.TaskGroup() as runners:
            await run_forever(partial(self._listen, runners), LOOK_EVERY_S, "intake_postponed")

    async def _listen(self, runners: asyncio.TaskGroup) -> None:
        await self._declare()
        async with self._bus.requests.listening(streams.STORED_JOBS) as stored:
            looked_s = 0.0
            while True:
                if time.monotonic() - looked_s >= LOOK_EVERY_S:
                    self._follow(runners, await self._waiting())
                    looked_s = time.monotonic()
                if (announced := await stored.next(LOOK_EVERY_S)) is not None:
                    _, stream, subject = announced.subject.split(".", 2)
                    self._take(runners, consumer_of(subject, stream))

    async def _declare(self) -> None:
        """Declare streams of tenants with keys. A stream is deleted once its tenant's deletion, about which the owner may ask, is over."""
        async with self._context.database.transaction() as tx:
            known = await keys.tenants_with_accounts(tx.connection)
        gone = {tenant for tenant, is_deleted in known.items() if is_deleted}
        try:
            await self._bus.own_jobs.declare(known.keys() - gone, deleted=gone)
        except Undeclared as error:  # one tenant's failure must not block other tenants' jobs
            log.warning("intake_postponed", reason=str(error))

    async def _waiting(self) -> set[Consumer]:
        """Consumers with waiting jobs."""
        own = {streams.scheduler_own_jobs(tenant) for tenant, jobs in (await self._bus.own_jobs.waiting()).items() if jobs}
        return own | {consumer_of(subject) for subject in await self._bus.streams.subjects(streams.JOBS)}

    def _follow(self, runners: asyncio.TaskGroup, waiting: Collection[Consumer]) -> None:
        """Start runners for consumers with waiting jobs, and end idle ones."""
        for consumer in waiting:
            self._take(runners, consumer)
        for consumer in [one for one, used_s in self._used_s.items() if time.monotonic() - used_s > self._unused_s]:
            self._used_s.pop(consumer)
            if (runner := self._runners.pop(consumer, None)) is not None:
                runner.cancel()

    def _take(self, runners: asyncio.TaskGroup, consumer: Consumer) -> None:
        self._used_s[consumer] = time.monotonic()
        runner = self._runners.get(consumer)
        if runner is None or runner.done():
            self._runners[consumer] = runners.create_task(self._handle(consumer))

    async def _handle(self, consumer: Consumer) -> None:
        """Handle a tenant's jobs until cancelled, or until NATS refuses the consumer, which the next poll retries."""
        try:
            await self._bus.consume_batches(consumer, partial(self._in_turn, consumer), max_batch=BATCH_SIZE)
        except Undeclared as error:  # too many consumers
            log.warning("intake_postponed", reason=str(error), consumer=consumer.name)

    async def _in_turn(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        claimant = Claimant(f"{consumer.stream} {consumer.name}", "jobs")
        await self._slots.acquire(claimant)
        began = time.monotonic()
        try:
            await handle_jobs(self._context, _without_answers(consumer, deliveries))
        finally:
            self._slots.release(claimant, time.monotonic() - began)


def _without_answers(consumer: Consumer, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
    """The jobs among `deliveries`. Others are answers: if a request names a job's subject as its reply subject, NATS stores the answer
    there, under an unknown verb. A tenant's keys can send no other message under an unknown verb."""
    if not streams.tenant_of(consumer.stream):
        return deliveries
    jobs = [one for one in deliveries if verb_of(one) in JOBS]
    if answers := len(deliveries) - len(jobs):
        log.warning("answers_among_jobs", stream=consumer.stream, answers=answers)
    return jobs


def consumer_of(subject: str, stream: str = streams.JOBS.name) -> Consumer:
    """Consumer of a job in its stream. Invalid tenant names have one too: their messages become dead letters."""
    if owner := streams.tenant_of(stream):
        return streams.scheduler_own_jobs(owner)
    tenant = streams.token(subject, 2)
    if tenant is None:
        return streams.NAMELESS_JOBS
    consumer = streams.scheduler_jobs(tenant)
    if re.fullmatch(NAME_PATTERN, tenant):
        return consumer
    return replace(consumer, name=f"{streams.NAMELESS_JOBS.name}{hashlib.sha256(tenant.encode()).hexdigest()[:16]}")
