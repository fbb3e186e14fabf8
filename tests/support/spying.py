"""What the connections of the services' account do, as nats-server's own log has it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LINE = re.compile(
    r'"[^" ]*:(?P<who>[^":]+)" - "\w+/services/[^"]*" - (?:'
    r"<<- \[H?PUB (?P<published>\S+) [^\]]*\]|"
    r'(?P<refused>Publish|Subscription) Violation - Subject "(?P<subject>[^"]+)")'
)


@dataclass(frozen=True)
class Seen:
    """One message that a connection published, or one thing that it was refused."""

    who: str
    """Name of the connection, without what a second one of the same process adds."""
    subject: str
    refused: str
    """`Publish` or `Subscription`; empty where it was permitted."""


def seen(log: Path) -> Iterator[Seen]:
    for line in log.read_text(errors="replace").splitlines():
        if found := LINE.search(line):
            who, subject = found["who"].removesuffix("-heartbeats"), found["published"] or found["subject"]
            yield Seen(who, subject, found["refused"] or "")


def refusals(log: Path) -> list[str]:
    """What services were refused, each once."""
    return sorted({f"{one.who}: {one.refused} of {one.subject}" for one in seen(log) if one.refused})
