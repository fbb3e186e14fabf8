"""How long the bus waits, and for what. Tests pass shorter values than these."""

from dataclasses import dataclass

from common.backoff import Backoff

RETRY = Backoff(first_s=0.4, max_s=10.0)


@dataclass(frozen=True)
class Timings:
    """Of one connection to NATS, in seconds."""

    connect_timeout_s: float = 5.0
    reconnect_s: float = 0.5
    max_reconnect_s: float = 5.0
    answer_timeout_s: float = 5.0
    """Maximum time for one answer of JetStream, also to a message that is published."""
    publish_patience_s: float = 30.0
    """Maximum time for which a message is published once more when no answer comes."""
    backoff: Backoff = RETRY
    pull_expires_s: float = 5.0
    """A request for messages that the server lost without a word is missed for this long, and `lost_pull_s` more."""
    lost_pull_s: float = 2.0
    drain_timeout_s: float = 2.0
    """For the server to send what it sent before it heard that no more is wanted."""
    ping_every_s: float = 5.0
    pings_unanswered: int = 3
    """A connection on which nothing comes back is given up after `ping_every_s` times this, and another is made."""
    idle_heartbeat_s: float = 5.0
    """Interval at which the server tells a follower that there is nothing new; a follower that misses two begins once more."""
    clock_every_s: float = 5.0
    """Interval at which NATS's clock is read."""
    max_clock_read_s: float = 1.0
    """An answer that took longer says too little about what time it is."""
    reader_s: float = 10.0
    """How long the server keeps the consumer behind a bucket that was read; nats-py leaves it behind, and the server's bound is minutes."""


DEFAULT = Timings()
