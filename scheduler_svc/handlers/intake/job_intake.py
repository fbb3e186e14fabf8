"""Intake of jobs, fair by tenant: each tenant's jobs are a queue of their own, and the queues share this replica's places.

A work queue has one order, so with one consumer a job waits behind every job before it. Here a tenant has a consumer while it has jobs:
one runner takes them in order, a few at a time, and waits for a place before it handles them. The places are granted as workers and
trainers grant theirs (`common/fairness`), with equal weights, since handling a job is no service that tenants pay for.

NATS announces each job that it stores, refused ones not; what was announced while nobody listened is found by a periodic look.
"""

import asyncio
import hashlib
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import structlog

from common import streams
from common.bus import Bus, Delivery
from common.errors import Unavailable, Undeclared
from common.fairness.fair_queue import Claimant
from common.fairness.fair_slots import FairSlots
from common.resilience.cancellation import notice_cancellation
from common.spec import NAME_PATTERN
from common.streams import Consumer
from scheduler_svc.handlers.context import HandlerContext
from scheduler_svc.handlers.intake.jobs import handle_jobs

BATCH_SIZE = 4
"""Maximum jobs of one tenant that are handled in one transaction."""
AT_ONCE = 4
"""Tenants whose jobs are handled at once: one may be a deletion, which takes minutes."""
LOOK_EVERY_S = 2.0
"""Interval between looks at the waiting jobs."""
UNUSED_S = 10.0
"""Time without jobs after which a tenant's runner ends."""

log = structlog.get_logger()


class JobIntake:
    def __init__(self, bus: Bus, context: HandlerContext, *, unused_s: float = UNUSED_S) -> None:
        self._bus = bus
        self._context = context
        self._unused_s = unused_s
        self._slots = FairSlots(AT_ONCE)
        self._runners: dict[str, asyncio.Task[None]] = {}
        self._used_s: dict[str, float] = {}
        """When a runner's tenant was last known to have jobs."""

    async def run(self) -> None:
        """Take jobs until cancelled. Raises: Fatal from a handler."""
        async with asyncio.TaskGroup() as runners:
            while True:
                notice_cancellation()
                try:
                    await self._bus.declarations.forget_consumer(streams.JOBS, streams.ALL_JOBS)
                    async with self._bus.requests.listening(streams.STORED_JOBS) as stored:
                        looked_s = 0.0
                        while True:
                            notice_cancellation()
                            if time.monotonic() - looked_s >= LOOK_EVERY_S:
                                self._follow(runners, await self._bus.streams.subjects(streams.JOBS))
                                looked_s = time.monotonic()
                            if (announced := await stored.next(LOOK_EVERY_S)) is not None:
                                self._take(runners, announced.subject.removeprefix("stored."))
                except Unavailable as error:
                    log.warning("intake_postponed", reason=str(error))
                    await asyncio.sleep(LOOK_EVERY_S)

    def _follow(self, runners: asyncio.TaskGroup, waiting: dict[str, int]) -> None:
        """Start runners for all jobs that wait, and end those that have none."""
        for subject in waiting:
            self._take(runners, subject)
        for name in [name for name, used_s in self._used_s.items() if time.monotonic() - used_s > self._unused_s]:
            self._used_s.pop(name)
            if (runner := self._runners.pop(name, None)) is not None:
                runner.cancel()

    def _take(self, runners: asyncio.TaskGroup, subject: str) -> None:
        consumer = consumer_of(subject)
        self._used_s[consumer.name] = time.monotonic()
        runner = self._runners.get(consumer.name)
        if runner is None or runner.done():
            self._runners[consumer.name] = runners.create_task(self._handle(consumer))

    async def _handle(self, consumer: Consumer) -> None:
        """Handle a tenant's jobs until cancelled, or until NATS refuses the consumer, which the next look tries again."""
        try:
            await self._bus.consume_batches(consumer, partial(self._in_turn, Claimant(consumer.name, "jobs")), max_batch=BATCH_SIZE)
        except Undeclared as error:  # too many consumers, or an older scheduler's takes all jobs
            log.warning("intake_postponed", reason=str(error), consumer=consumer.name)
            await self._bus.declarations.forget_consumer(streams.JOBS, streams.ALL_JOBS)

    async def _in_turn(self, claimant: Claimant, deliveries: Sequence[Delivery]) -> None:
        await self._slots.acquire(claimant)
        began = time.monotonic()
        try:
            await handle_jobs(self._context, deliveries)
        finally:
            self._slots.release(claimant, time.monotonic() - began)


def consumer_of(subject: str) -> Consumer:
    """The consumer of a job's tenant. What no tenant can be called has one too: its messages become dead letters."""
    tenant = streams.token(subject, 2)
    if tenant is None:
        return streams.NAMELESS_JOBS
    consumer = streams.scheduler_jobs(tenant)
    if re.fullmatch(NAME_PATTERN, tenant):
        return consumer
    return replace(consumer, name=f"{streams.NAMELESS_JOBS.name}{hashlib.sha256(tenant.encode()).hexdigest()[:16]}")
