"""Timeouts and intervals of the bus. Tests pass shorter values."""

from dataclasses import dataclass

from common.resilience.backoff import Backoff

RETRY = Backoff(first_s=0.4, max_s=10.0)


@dataclass(frozen=True)
class Timings:
    """Timeouts and intervals in seconds, for one connection to NATS."""

    connect_timeout_s: float = 5.0
    reconnect_s: float = 0.5
    max_reconnect_s: float = 5.0
    answer_timeout_s: float = 5.0
    """Maximum seconds for one answer of JetStream, including the confirmation of a published message."""
    publish_patience_s: float = 30.0
    """Maximum seconds over which publishing a message is retried."""
    backoff: Backoff = RETRY
    pull_expires_s: float = 5.0
    """Lifetime of a pull request in seconds. After this time plus `lost_pull_s`, an unanswered request counts as lost and is repeated."""
    lost_pull_s: float = 2.0
    drain_timeout_s: float = 2.0
    """Maximum seconds for in-flight messages while a subscription drains."""
    ping_every_s: float = 5.0
    pings_unanswered: int = 3
    """Unanswered pings, `ping_every_s` apart, after which the connection is replaced."""
    idle_heartbeat_s: float = 5.0
    """Seconds between the server's heartbeats to an idle follower. After two missed heartbeats, a follower subscribes again."""
    clock_every_s: float = 5.0
    """Seconds between readings of NATS's clock."""
    max_clock_read_s: float = 1.0
    """Maximum seconds that a reading takes; a slower one is too inexact."""
    reader_s: float = 10.0
    """Lifetime in seconds of the consumer that reading a bucket leaves behind; the server's default is minutes."""


DEFAULT = Timings()
