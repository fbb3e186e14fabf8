"""Addresses of NATS servers: one, or those of a cluster's nodes separated by commas."""

import re
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

SCHEMES = ({"nats", "tls"}, {"ws", "wss"})
"""Schemes of an address; all nodes of a cluster use one set."""


def objection_to_address(url: str) -> str | None:
    """Why `url` names no NATS servers; None when it does. nats-py's own error would look like an unavailable server."""
    schemes = {_scheme(node) for node in nodes(url)}
    if schemes and any(schemes <= kind for kind in SCHEMES):
        return None
    return f"'{without_password(url)}' is no address of NATS; one looks like nats://host:4222"


def is_plain_beyond_loopback(url: str) -> bool:
    """Whether some node is on another machine and is reached without TLS."""
    return any(_scheme(node) not in ("tls", "wss") and not is_loopback(_parts(node).hostname or "") for node in nodes(url))


def is_beyond_loopback(url: str) -> bool:
    """Whether some node is on another machine."""
    return any(not is_loopback(_parts(node).hostname or "") for node in nodes(url))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a name or an IP address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def nodes(url: str) -> list[str]:
    return [node.strip() for node in url.split(",") if node.strip()]


def without_password(url: str) -> str:
    return ",".join(re.sub(r"^(.*://)?.*@", r"\1", node) for node in nodes(url))


def _scheme(node: str) -> str | None:
    """Scheme of one server's address, `nats` by default; None when it is no address."""
    try:
        parts = _parts(node)
        return parts.scheme if parts.hostname and parts.port != 0 else None
    except ValueError:  # a port that is no number, or above 65535
        return None


def _parts(node: str) -> SplitResult:
    return urlsplit(node if "://" in node else f"nats://{node}")
