"""Connections to NATS as tests make them, and the messages on it."""

from common.bus import Bus, Delivery
from common.bus.transport.timings import Timings
from common.resilience.backoff import Backoff
from common.streams import Stream
from tests.support.waiting import eventually

HASTY = Timings(answer_timeout_s=10.0, backoff=Backoff(first_s=0.02, max_s=0.64))
"""Timings of the tests' own connections. A busy machine may hold a server up for 5 s: what asks it once waits longer."""


async def message_on(bus: Bus, stream: Stream, subject: str) -> Delivery:
    """The last message on `subject`, once there is one."""
    await eventually(lambda: bus.streams.last(stream, subject))
    found = await bus.streams.last(stream, subject)
    assert found is not None
    return found
