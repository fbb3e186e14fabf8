"""Which requests this process takes, and which of them it sends to replicas.

One tenant may use half of the concurrent requests, and of the bytes that wait for a replica. Replicas take requests in the order of the
queue, several for each that they answer concurrently, and are fair among those that they have: a tenant that sends a thousand would fill
the queue. So of each tenant and pool only some are sent and have no token yet; the others wait here, fair by key.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

from common.errors import MarlaasError
from common.fairness.fair_queue import Claimant
from common.fairness.fair_slots import FairSlots

MAX_STREAMS = 2000
"""Maximum concurrent requests of one process."""
MAX_WAITING_BYTES = 32 * 1024 * 1024
"""Bytes of requests that no replica has taken; those of all gateways share the stream REQUESTS."""
TENANTS_SHARE = 0.5
"""Maximum share of one tenant: another's requests find room."""
AT_ONCE = 8
"""Requests of one tenant and pool that are sent and have no token. Fewer than a replica takes, so that one tenant's never fill what it
takes; enough to begin some hundred requests a second."""


class TooManyStreams(MarlaasError):
    """This process has as many requests as it may."""


class StreamQuota:
    """Of one process. It counts, since a sum over all requests for each new one would take as long as the rest of it."""

    def __init__(self, max_streams: int = MAX_STREAMS, max_waiting_bytes: int = MAX_WAITING_BYTES) -> None:
        self._max_streams = max_streams
        self._max_waiting_bytes = max_waiting_bytes
        self._streams: Counter[str] = Counter()
        """By tenant."""
        self._waiting_bytes: Counter[str] = Counter()
        self._bytes = 0

    def enter(self, tenant: str, size_bytes: int) -> "Reservation":
        """The room of a request that waits. Raises: TooManyStreams."""
        if self._streams.total() >= self._max_streams or self._streams[tenant] >= max(1, TENANTS_SHARE * self._max_streams):
            raise TooManyStreams("this gateway has as many requests to versions as it may, or as the tenant may; ask again later")
        of_tenant = self._waiting_bytes[tenant] + size_bytes
        if self._bytes + size_bytes > self._max_waiting_bytes or of_tenant > TENANTS_SHARE * self._max_waiting_bytes:
            raise TooManyStreams("requests of as many bytes as may wait for replicas; ask again later")
        self._streams[tenant] += 1
        return Reservation(self, tenant, size_bytes)

    def count(self, tenant: str, *, waiting_bytes: int = 0, streams: int = 0) -> None:
        """Add to what the tenant has."""
        self._bytes += waiting_bytes
        self._waiting_bytes[tenant] += waiting_bytes
        self._streams[tenant] += streams
        if not self._streams[tenant]:
            del self._streams[tenant], self._waiting_bytes[tenant]


class Reservation:
    """Room of one request, until `leave`."""

    def __init__(self, room: StreamQuota, tenant: str, size_bytes: int) -> None:
        self._room = room
        self._tenant = tenant
        self._size_bytes = size_bytes
        self._waits = False
        self.note(waits=True)

    def note(self, *, waits: bool) -> None:
        """Whether the request waits for a replica now."""
        if waits != self._waits:
            self._waits = waits
            self._room.count(self._tenant, waiting_bytes=self._size_bytes if waits else -self._size_bytes)

    def leave(self) -> None:
        self.note(waits=False)
        self._room.count(self._tenant, streams=-1)


class SendWindow:
    """Of one process."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._slots: dict[tuple[str, str], FairSlots] = {}
        """By pool and tenant."""

    @property
    def waiting(self) -> int:
        return sum(slots.waiting for slots in self._slots.values())

    async def begin(self, pool: str, tenant: str, key: str | None) -> Callable[[], None]:
        """Waits until a request may be sent. The function that it returns must be called when the request has its first token, or
        ends; more calls do nothing."""
        place, claimant = (pool, tenant), Claimant(key or "none", "requests")
        slots, ending = self._slots.setdefault(place, FairSlots(self._at_once)), ExitStack()
        ending.callback(self._forget_idle, place)
        with ending:
            await slots.acquire(claimant)
            ending.callback(slots.release, claimant, 1.0)
            return ending.pop_all().close

    def _forget_idle(self, place: tuple[str, str]) -> None:
        slots = self._slots.get(place)
        if slots is not None and not slots.waiting and not slots.running:
            del self._slots[place]
