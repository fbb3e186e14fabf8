"""The scheduler's answers to jobs: events, for which a client waits."""

import asyncio
from collections.abc import Callable

from common import streams
from common.bus import Bus, Outgoing
from common.errors import Retry
from common.messages import Event
from marlaas.errors import NoAnswer

REPEATED_TIMEOUT_S = 3.0
"""Seconds to wait for a rejection when a task is resubmitted under its id."""


async def answer_to(bus: Bus, out: Outgoing, about: str, is_answer: Callable[[Event], bool], timeout_s: float) -> Event:
    """Publish a job and wait for its answer, an event on subject `about`. Raises: NoAnswer."""
    try:
        async with asyncio.timeout(timeout_s):
            before = await bus.streams.last(streams.EVENTS, about)
            await bus.publish(out)
            async for delivery in bus.streams.follow(streams.EVENTS, about):
                if delivery.sequence > (before.sequence if before else 0) and is_answer(event := delivery.read(Event)):
                    return event
    except (TimeoutError, Retry):
        pass
    raise NoAnswer(f"the scheduler does not answer {out.subject} within {timeout_s:.0f} s; it is done later if NATS took it")


async def answer_to_submission(bus: Bus, tenant: str, task: str, before: int) -> Event:
    """Accepted or rejected. `before`: sequence of the id's last event, 0 for a new id.

    The scheduler does not answer the same submission twice: then the first answer stands.
    """
    earlier: Event | None = None
    try:
        async with asyncio.timeout(REPEATED_TIMEOUT_S if before else None):
            async for delivery in bus.streams.follow(streams.EVENTS, streams.events(tenant, task)):
                event = delivery.read(Event)
                if event.event not in ("accepted", "rejected"):
                    continue
                if delivery.sequence > before:
                    return event
                earlier = event
    except TimeoutError:
        if earlier is not None:
            return earlier
        raise
    raise NoAnswer(f"the connection to NATS ended while task {task} was being submitted")
