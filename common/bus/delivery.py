"""Input and output of handlers: deliveries, messages to publish, slots."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from common.errors import Reject
from common.message_consistency import require_agreement
from common.messages import Message
from common.streams import KIND_HEADER

M = TypeVar("M", bound=Message)

TRACE_HEADER = "traceparent"
MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
HEADER_BYTES = 512
"""Upper bound of the bytes of headers added to every message."""

current_trace: ContextVar[str | None] = ContextVar("trace", default=None)


@dataclass(frozen=True)
class Outgoing:
    """A message to publish. `message_id` is derived from the message's subject matter, so that publishing it twice stores it once."""

    subject: str
    message: Message
    message_id: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Delivery:
    """A message as received."""

    subject: str
    headers: Mapping[str, str]
    body: bytes
    sequence: int
    """Position in its stream."""
    attempt: int
    """1 at first delivery; 0 if deliveries are not counted."""

    def read(self, model: type[M]) -> M:
        """Decode the body as `model`.

        Raises: Reject if it is of another kind, malformed, or contradicts its subject, its headers or itself (`message_consistency.py`).
        """
        kind = self.headers.get(KIND_HEADER, model.kind)
        if kind != model.kind:
            raise Reject(f"{self.subject} carries '{kind}'; this version understands '{model.kind}'")
        message = model.decode(self.body, by_user=self.subject.startswith("jobs."))
        require_agreement(self.subject, self.headers, message)
        return message


Handler = Callable[[Delivery], AsyncIterator[Outgoing]]
"""An async generator function: each message that it yields is published immediately."""
BatchHandler = Callable[[Sequence[Delivery]], Awaitable[None]]


class Slots:
    """Concurrency limit of a replica. The bus takes one unit per message; a handler may take and release more."""

    def __init__(self, total: int) -> None:
        self._total = self._free = total
        self._watchers: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self.are_closed = False
        """Whether `free` is 0 regardless of releases."""

    @property
    def free(self) -> int:
        return 0 if self.are_closed else max(0, self._free)

    @property
    def used(self) -> int:
        """Units in use, which may be more than there are."""
        return self._total - self._free

    @property
    def load(self) -> float:
        """Fraction of the units in use; 1 or more while closed."""
        return max(float(self.are_closed), self.used / max(1, self._total))

    def take(self, units: int = 1) -> None:
        self._free -= units

    def release(self, units: int = 1) -> None:
        self._free += units
        self._notify_released()

    def resize(self, total: int) -> None:
        """Change the number of units; those in use stay so. With fewer units, pending requests are withdrawn as in `close`, and sent again
        for the units left."""
        more, self._total = total - self._total, total
        self._free += more
        if more > 0:
            self._notify_released()
        elif more < 0:
            self._withdraw()

    def close(self) -> None:
        """Request no more messages until `open`, and withdraw pending requests. The server may still answer a request before it has
        processed the withdrawal."""
        self.are_closed = True
        self._withdraw()

    def open(self) -> None:
        self.are_closed = False
        self._notify_released()

    def on_change(self, released: Callable[[], None], closed: Callable[[], None]) -> Callable[[], None]:
        """Call `released` at each release of units, on opening and with more units; `closed` on closing and with fewer. Returns a function
        that ends these calls."""
        watcher = released, closed
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def _notify_released(self) -> None:
        for released, _ in list(self._watchers):
            released()

    def _withdraw(self) -> None:
        for _, closed in list(self._watchers):
            closed()


class GatedSlots(Slots):
    """Units of other `Slots`, behind a gate: for a consumer that is read only while the gate is open. The gate is closed at first."""

    def __init__(self, slots: Slots, taken: Callable[[], None] = lambda: None) -> None:
        """`taken` is called after each unit taken through the gate; it may close the gate before a further message passes."""
        super().__init__(0)
        self._slots = slots
        self._taken = taken
        self.are_closed = True

    @property
    def free(self) -> int:
        return 0 if self.are_closed else self._slots.free

    def take(self, units: int = 1) -> None:
        self._slots.take(units)
        self._taken()

    def release(self, units: int = 1) -> None:
        self._slots.release(units)

    def on_change(self, released: Callable[[], None], closed: Callable[[], None]) -> Callable[[], None]:
        forget_own, forget = super().on_change(released, closed), self._slots.on_change(released, closed)

        def forget_both() -> None:
            forget_own()
            forget()

        return forget_both


def delivery_of(message: Msg) -> Delivery:
    sequence, attempt = 0, 0
    if message.reply:  # messages outside a stream have none, and an exception costs as much as the rest
        with suppress(NatsError):
            metadata = message.metadata
            sequence, attempt = metadata.sequence.stream, metadata.num_delivered
    return Delivery(message.subject, message.headers or {}, message.data, sequence, attempt)


def refuse_oversize(subject: str, body: bytes, headers: Mapping[str, str]) -> None:
    """Raises: Reject if the message exceeds the bus's maximum size."""
    size = len(body) + HEADER_BYTES + sum(len(name) + len(value) + 4 for name, value in headers.items())
    if size > MAX_PAYLOAD_BYTES:
        raise Reject(f"{headers.get(KIND_HEADER, 'a message')} for {subject} has {size} bytes; the bus takes {MAX_PAYLOAD_BYTES}")


def trace(received: str | None = None) -> str:
    """W3C trace context: `received`, the current one, or a new one. All messages that result from one message share its context."""
    return received or current_trace.get() or f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
