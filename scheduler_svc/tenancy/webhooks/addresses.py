"""Which addresses webhooks may reach: those of the public internet, and networks that the operator names. Pure."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from common.errors import Reject

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

UNICAST = ipaddress.IPv6Network("2000::/3")
"""What IANA gives to the public internet: site-local addresses and those that a NAT64 translates are outside."""
NOT_HOSTS = tuple(map(ipaddress.IPv6Network, ("2002::/16", "2001::/32", "3fff::/20")))
"""Networks in it that carry an address of IPv4 to a tunnel (6to4, Teredo), or are for documentation."""
PORTS = {"https": 443, "http": 80}
LOCAL = (".localhost", ".local", ".internal", ".lan", ".home.arpa")
"""Ends of names that mean a machine of the same network; names without a dot do, too."""
_LABEL = "[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
NAME = re.compile(rf"(?:{_LABEL}\.)*(?!(?:[0-9]+|0x[0-9a-f]*)$){_LABEL}")
"""Name of a host as DNS has it. One that ends with a number is an address to some readers of URLs: 127.1, 0x7f.1, 2130706433."""
MAX_NAME_CHARS = 253


@dataclass(frozen=True)
class Policy:
    """What the operator permits."""

    networks: Sequence[Network] = ()
    """Networks whose addresses are permitted though they are not public."""
    http: bool = False
    """Whether addresses without TLS are."""

    def permits(self, address: Address) -> bool:
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if any(address in network for network in self.networks):
            return True
        if isinstance(address, ipaddress.IPv6Address) and (address not in UNICAST or any(address in network for network in NOT_HOSTS)):
            return False
        return address.is_global and not (address.is_multicast or address.is_reserved)


@dataclass(frozen=True)
class WebhookRules:
    """What the operator has set for webhooks."""

    policy: Policy = Policy()
    sealing_key: bytes = field(default=b"", repr=False)


NO_WEBHOOK_RULES = WebhookRules()


def parse_networks(names: str) -> tuple[Network, ...]:
    """Networks separated by commas. Raises: ValueError."""
    return tuple(ipaddress.ip_network(name.strip()) for name in names.split(",") if name.strip())


def parse_url(url: str, policy: Policy) -> SplitResult:
    """The parts of a webhook's URL. Raises: Reject, with what is wrong about it."""
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise Reject(f"url: it is no URL: {error}") from None
    if parts.scheme not in PORTS or (parts.scheme == "http" and not policy.http):
        raise Reject("url: it begins with https://" + (" or http://" if policy.http else ""))
    if not host or port == 0:
        raise Reject("url: it names no host, or the port 0")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise Reject("url: it has a user, a password or a fragment, which are not sent; leave them out")
    literal = literal_of(host)
    if literal is not None and not policy.permits(literal):
        raise Reject(f"url: {literal} is no public address")
    if literal is None and ("[" in parts.netloc or len(host) > MAX_NAME_CHARS or not NAME.fullmatch(host)):
        raise Reject(f"url: '{host}' is neither a name such as hooks.example.com nor an address such as 192.0.2.1 or [2001:db8::1]")
    if literal is None and not policy.networks and ("." not in host or host.endswith(LOCAL)):
        raise Reject(f"url: '{host}' is no public host")
    return parts


def literal_of(host: str) -> Address | None:
    """The address that a URL has in place of a name, in its usual form: four decimal numbers, or IPv6 without a zone."""
    try:
        return None if "%" in host else ipaddress.ip_address(host)
    except ValueError:
        return None
