"""Addresses that environments of tenants may reach: the operator's list `MARLAAS_ENV_OWN_ADDRESSES`, entries separated by commas. Pure.

    acme=api.example.org:443     tenant acme, this name and port
    acme=10.0.0.7:8000           this address; the only way to one that is not public
    acme=[fd00::7]:8000

A name leads to public addresses alone: its owner could otherwise point it at this machine or its neighbours.
"""

import ipaddress
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from common.errors import Fatal

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
ENTRY = re.compile(r"^(?P<tenant>[a-z0-9-]+)=(?P<address>\S+)$")
HOST = re.compile(r"^(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_-]{1,63})*\.?$")
NAT64 = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True)
class Address:
    """A host, as it is listed, and a port."""

    host: str
    """Name in lower case, or an IP in its normal form."""
    port: int

    @property
    def ip(self) -> IPAddress | None:
        """None where the host is a name."""
        return _ip(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parsed_address(text: str) -> Address:
    """The address in `host:port`. Raises: ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or not 1 <= int(port[:6]) <= 65_535:
        raise ValueError(f"'{text:.100}' is no host:port")
    is_bracketed = host.startswith("[") and host.endswith("]")
    ip = _ip(host[1:-1] if is_bracketed else host)
    if ip is not None and (ip.version == 6) == is_bracketed:
        return Address(str(ip), int(port))
    if ip is not None or not HOST.match(host) or host.rstrip(".").rpartition(".")[2].isdecimal():  # 127.1 and 0177.0.0.1 are no names
        raise ValueError(f"'{text:.100}' is no host:port")
    return Address(host.rstrip(".").lower(), int(port))


def parsed_addresses(entries: str) -> Mapping[str, frozenset[Address]]:
    """Tenant → its addresses. Raises: Fatal for a wrong entry."""
    found: dict[str, set[Address]] = defaultdict(set)
    for entry in filter(None, map(str.strip, entries.split(","))):
        match = ENTRY.match(entry)
        try:
            if match is None:
                raise ValueError("no tenant")
            found[match["tenant"]].add(parsed_address(match["address"]))
        except ValueError:
            raise Fatal(f"MARLAAS_ENV_OWN_ADDRESSES: '{entry}' is no tenant=host:port, such as acme=api.example.org:443") from None
    return {tenant: frozenset(addresses) for tenant, addresses in found.items()}


def is_public(ip: IPAddress) -> bool:
    """Whether it is an address of the public internet, also one that stands for an address of the other version."""
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
    return ip.is_global and not ip.is_multicast


def _ip(text: str) -> IPAddress | None:
    try:
        return None if "%" in text else ipaddress.ip_address(text)
    except ValueError:
        return None
