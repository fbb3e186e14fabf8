"""Errors, whose type decides about redelivery.

    MarlaasError
    ├── Reject      this message can never succeed   → dead letter now, with the reason
    │   └── Forbidden  the user's key does not permit it
    ├── Retry       the world was not ready          → redeliver after `delay_s`
    │   ├── QueueFull      as many messages wait as may
    │   ├── HandedBack     this replica takes none now      → redeliver immediately, to any replica
    │   └── Unavailable    a server or a disk is not there  → wait here until it is; no attempt is counted
    │       └── StreamFull   a stream has as many bytes as it may
    └── Fatal       this process is broken           → stop consuming, exit 1
        ├── Undeclared     JetStream refuses a declaration
        └── KeyRefused     NATS does not take the key

Any other exception from a handler is a bug: traceback, back off, dead letter after the last attempt. Shutdown
(`asyncio.CancelledError`) is none of these: unfinished messages are redelivered immediately.
"""


class MarlaasError(Exception):
    """Base of the errors that mean something to the bus or to the user."""


class Reject(MarlaasError):
    """The message can never succeed; its text is the reason that the task's owner reads, or several."""

    def __init__(self, *reasons: str) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class Forbidden(Reject):
    """NATS refuses what the key of this connection does not permit; the text says what, and whom to ask."""


MEMORY_DELAY_S = 30.0
"""Delay before a message is retried whose handling lacked memory: another process may have released some by then."""


class Retry(MarlaasError):
    """The message may succeed later, for example once a blob or a server is back."""

    def __init__(self, reason: str, *, delay_s: float = 1.0) -> None:
        super().__init__(reason)
        self.delay_s = delay_s


class QueueFull(Retry):
    """NATS refuses the message: as many of its subject wait as may."""


class HandedBack(Retry):
    """This replica takes no messages now, though it had asked for some. Never the last attempt of a message."""


class Unavailable(Retry):
    """NATS or PostgreSQL does not answer, or a disk is full. It is no message's fault, and none is lost."""


class StreamFull(Unavailable):
    """NATS refuses the message: its stream has as many bytes as it may. A sender waits, and nothing is lost."""


class Fatal(MarlaasError):
    """This process cannot do its work; another replica, or its restart, may."""


class Undeclared(Fatal):
    """JetStream refuses to declare a stream or a consumer."""


class KeyRefused(Fatal):
    """NATS does not take this key, or asks for one."""
