"""Per-process limits on concurrent requests and on bytes waiting for a replica; and a window of requests sent per tenant.

One tenant may use half of the concurrent requests, and half of the waiting bytes. Replicas accept requests in queue order, several times
as many as they answer concurrently, and are fair only among these. A tenant that sends a thousand would fill the queue. So per tenant
and pool only a few requests without a first token are sent; the others wait here, fairly by key.
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
"""Maximum bytes of requests that no replica has accepted; those of all gateways share the stream REQUESTS."""
TENANTS_SHARE = 0.5
"""Maximum fraction per tenant, so that requests of other tenants find room."""
MAX_SENT = 8
"""Maximum requests per tenant and pool that were sent and have no token. Fewer than a replica accepts, so that one tenant cannot fill a
replica; enough to start a few hundred requests per second."""


class TooManyStreams(MarlaasError):
    """The process or the tenant has reached its maximum of requests."""


class StreamQuota:
    """Quota of one process. It keeps counters, as summing over all requests for each new one would double its cost."""

    def __init__(self, max_streams: int = MAX_STREAMS, max_waiting_bytes: int = MAX_WAITING_BYTES) -> None:
        self._max_streams = max_streams
        self._max_waiting_bytes = max_waiting_bytes
        self._streams: Counter[str] = Counter()
        """Tenant → number of concurrent requests."""
        self._waiting_bytes: Counter[str] = Counter()
        self._bytes = 0

    def enter(self, tenant: str, size_bytes: int) -> "Reservation":
        """Reserve room for a waiting request. Raises: TooManyStreams."""
        if self._streams.total() >= self._max_streams or self._streams[tenant] >= max(1, TENANTS_SHARE * self._max_streams):
            raise TooManyStreams("this gateway has as many requests to versions as it may, or as the tenant may; ask again later")
        of_tenant = self._waiting_bytes[tenant] + size_bytes
        if self._bytes + size_bytes > self._max_waiting_bytes or of_tenant > TENANTS_SHARE * self._max_waiting_bytes:
            raise TooManyStreams("requests of as many bytes as may wait for replicas; ask again later")
        self._streams[tenant] += 1
        return Reservation(self, tenant, size_bytes)

    def count(self, tenant: str, *, waiting_bytes: int = 0, streams: int = 0) -> None:
        """Add to the tenant's counters."""
        self._bytes += waiting_bytes
        self._waiting_bytes[tenant] += waiting_bytes
        self._streams[tenant] += streams
        if not self._streams[tenant]:
            del self._streams[tenant], self._waiting_bytes[tenant]


class Reservation:
    """Quota reserved for one request, until `leave`."""

    def __init__(self, room: StreamQuota, tenant: str, size_bytes: int) -> None:
        self._room = room
        self._tenant = tenant
        self._size_bytes = size_bytes
        self._waits = False
        self.note(waits=True)

    def note(self, *, waits: bool) -> None:
        """Record whether the request waits for a replica."""
        if waits != self._waits:
            self._waits = waits
            self._room.count(self._tenant, waiting_bytes=self._size_bytes if waits else -self._size_bytes)

    def leave(self) -> None:
        self.note(waits=False)
        self._room.count(self._tenant, streams=-1)


class SendWindow:
    """Send windows of one process."""

    def __init__(self, max_sent: int = MAX_SENT) -> None:
        self._max_sent = max_sent
        self._slots: dict[tuple[str, str], FairSlots] = {}
        """(pool, tenant) → slots."""

    @property
    def waiting(self) -> int:
        return sum(slots.waiting for slots in self._slots.values())

    async def begin(self, pool: str, tenant: str, key: str | None) -> Callable[[], None]:
        """Wait until a request may be sent. Call the returned function at its first token or its end; further calls do nothing."""
        place, claimant = (pool, tenant), Claimant(key or "none", "requests")
        slots, ending = self._slots.setdefault(place, FairSlots(self._max_sent)), ExitStack()
        ending.callback(self._forget_idle, place)
        with ending:
            await slots.acquire(claimant)
            ending.callback(slots.release, claimant, 1.0)
            return ending.pop_all().close

    def _forget_idle(self, place: tuple[str, str]) -> None:
        slots = self._slots.get(place)
        if slots is not None and not slots.waiting and not slots.running:
            del self._slots[place]
