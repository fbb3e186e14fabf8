"""Addresses that webhooks may reach: the public internet, and networks that the operator names. Pure."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from common.errors import Reject

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

UNICAST = ipaddress.IPv6Network("2000::/3")
"""Global unicast addresses by IANA; excludes site-local and NAT64 addresses."""
NOT_HOSTS = tuple(map(ipaddress.IPv6Network, ("2002::/16", "2001::/32", "3fff::/20")))
"""Excluded networks within UNICAST: tunnels to IPv4 addresses (6to4, Teredo), and documentation."""
PORTS = {"https": 443, "http": 80}
LOCAL = (".localhost", ".local", ".internal", ".lan", ".home.arpa")
"""Suffixes of names in the local network; names without a dot count as local too."""
_LABEL = "[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
NAME = re.compile(rf"(?:{_LABEL}\.)*(?!(?:[0-9]+|0x[0-9a-f]*)$){_LABEL}")
"""Host name by DNS's rules. Names that end with a number are excluded: some URL parsers read 127.1, 0x7f.1 and 2130706433 as addresses."""
MAX_NAME_CHARS = 253


@dataclass(frozen=True)
class Policy:
    """Addresses and schemes that the operator permits."""

    networks: Sequence[Network] = ()
    """Permitted networks that are not public."""
    http: bool = False
    """Whether http:// URLs, without TLS, are permitted."""

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
    """The operator's settings for webhooks."""

    policy: Policy = Policy()
    sealing_key: bytes = field(default=b"", repr=False)


NO_WEBHOOK_RULES = WebhookRules()


def parse_networks(names: str) -> tuple[Network, ...]:
    """Networks in a comma-separated list. Raises: ValueError."""
    return tuple(ipaddress.ip_network(name.strip()) for name in names.split(",") if name.strip())


def parse_url(url: str, policy: Policy) -> SplitResult:
    """Parts of a webhook's URL. Raises: Reject, with the reason."""
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
    """Address that `host` is, if in its usual form (four decimal numbers, or IPv6 without a zone); None if `host` is a name."""
    try:
        return None if "%" in host else ipaddress.ip_address(host)
    except ValueError:
        return None
