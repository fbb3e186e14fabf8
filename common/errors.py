"""Errors, whose type decides about redelivery.

    MarlaasError
    ├── Reject      this message can never succeed   → dead letter now, with the reason
    │   └── Forbidden  the user's key does not permit it
    ├── Retry       a precondition is not met yet    → redeliver after `delay_s`
    │   ├── QueueFull      the maximum number of messages is waiting
    │   ├── HandedBack     this replica takes none now      → redeliver immediately, to any replica
    │   └── Unavailable    a server or a disk is unavailable → wait here until it is back; no attempt is counted
    │       └── StreamFull   a stream has reached its maximum bytes
    └── Fatal       this process is broken           → stop consuming, exit 1
        ├── Undeclared     JetStream refuses a declaration
        └── KeyRefused     NATS refuses the key

Any other exception from a handler is a bug: traceback, back off, dead letter after the last attempt. Shutdown
(`asyncio.CancelledError`) is none of these: unfinished messages are redelivered immediately.
"""


class MarlaasError(Exception):
    """Base of the errors with a meaning for the bus or the user."""


class Reject(MarlaasError):
    """The message can never succeed. The error's text gives the reasons, for the task's owner."""

    def __init__(self, *reasons: str) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class Forbidden(Reject):
    """NATS refuses an action that this connection's key does not permit; the text names the action, and whom to ask."""


MEMORY_DELAY_S = 30.0
"""Seconds before the retry of a message whose handling ran out of memory: another process may have released some by then."""


class Retry(MarlaasError):
    """The message may succeed later, for example once a blob or a server is back."""

    def __init__(self, reason: str, *, delay_s: float = 1.0) -> None:
        super().__init__(reason)
        self.delay_s = delay_s


class QueueFull(Retry):
    """NATS refuses the message: the maximum number of messages of its subject is waiting."""


class HandedBack(Retry):
    """This replica had requested the message, but takes no messages now. A delivery with this outcome is never a message's last attempt."""


class Unavailable(Retry):
    """NATS or PostgreSQL does not answer, or a disk is full. The message is not at fault, and none is lost."""


class StreamFull(Unavailable):
    """NATS refuses the message: its stream has reached its maximum bytes. The sender waits, and nothing is lost."""


class Fatal(MarlaasError):
    """This process cannot work; another replica may, or this process after a restart."""


class Undeclared(Fatal):
    """JetStream refuses to declare a stream or a consumer."""


class KeyRefused(Fatal):
    """NATS refuses this key, or requires one."""
