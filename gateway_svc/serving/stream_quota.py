"""Per-process limits on concurrent requests and on bytes that wait for a replica; one tenant may use half of both."""

from collections import Counter

from common.errors import MarlaasError

MAX_STREAMS = 2000
"""Maximum concurrent requests of one process."""
MAX_WAITING_BYTES = 32 * 1024 * 1024
"""Bytes of requests that no replica has taken; those of all gateways share the stream REQUESTS."""
TENANTS_SHARE = 0.5
"""Maximum share of one tenant: another's requests find room."""


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
