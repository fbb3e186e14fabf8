"""A consumer at work for as long as a test needs it."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from common import streams
from common.bus import Bus, Delivery, Handler, Outgoing, Slots
from common.messages import SubmitTask
from common.streams import Consumer
from tests.support.waiting import at_work, eventually_equals

JOBS = replace(streams.scheduler_jobs("acme"), ack_wait_s=60.0, max_attempts=3)


def job(task: str) -> Outgoing:
    """On a subject of its own, as if by a key of its own: NATS bounds the messages of each."""
    return Outgoing(f"{streams.job('submit', 'acme')}.{task}", SubmitTask(task=task, tenant="acme", spec={}), f"submit:{task}")


Work = Handler | Callable[[Delivery], Awaitable[None]]


def as_handler(work: Work) -> Handler:
    """`work` itself, or a handler that yields nothing."""

    async def silent(delivery: Delivery) -> AsyncIterator[Outgoing]:
        await work(delivery)  # pyright: ignore[reportGeneralTypeIssues]
        return
        yield

    return work if inspect.isasyncgenfunction(work) else silent


def consuming(bus: Bus, work: Work, slots: int = 4, consumer: Consumer = JOBS) -> AbstractAsyncContextManager[asyncio.Task[None]]:
    return at_work(bus.consume(consumer, as_handler(work), Slots(slots)))


async def drained(bus: Bus) -> None:
    """Wait until every job is acknowledged."""
    await eventually_equals(lambda: bus.streams.backlog(streams.JOBS), 0)
