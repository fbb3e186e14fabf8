"""Connections to NATS as tests make them, and the messages on it."""

from common.bus import Bus, Delivery
from common.bus.transport.timings import Timings
from common.resilience.backoff import Backoff
from common.streams import Stream
from tests.support.waiting import eventually

HASTY = Timings(backoff=Backoff(first_s=0.02, max_s=0.64))
"""Timings of the tests' own connections."""


async def message_on(bus: Bus, stream: Stream, subject: str) -> Delivery:
    """The last message on `subject`, once there is one."""
    await eventually(lambda: bus.streams.last(stream, subject))
    found = await bus.streams.last(stream, subject)
    assert found is not None
    return found
