"""Addresses of gateways."""

from urllib.parse import urlsplit

from common.bus.transport.address import is_loopback, without_password

EXAMPLE = "https://host"


def is_http(url: str) -> bool:
    """Whether an address is a gateway's instead of NATS's."""
    return url.lower().startswith(("http://", "https://"))


def objection_to_gateway(url: str) -> str | None:
    """Reason why `url` is not a gateway's address; None if it is."""
    shown = without_password(url)
    try:
        parts = urlsplit(url)
        is_address = bool(parts.hostname) and parts.port != 0 and not (parts.query or parts.fragment) and url.isprintable()
    except ValueError:  # the port is not a number, or above 65535
        is_address, parts = False, None
    if not is_address or parts is None:
        return f"'{shown}' is no address of a gateway; one looks like {EXAMPLE}"
    if "@" in parts.netloc:
        return f"'{shown}': a key is in no address; give it as MARLAAS_KEY, or key=… in Python"
    return None


def is_plain_beyond_this_machine(url: str) -> bool:
    """Whether requests to the address cross a network in plain text."""
    parts = urlsplit(url)
    return parts.scheme.lower() == "http" and not is_loopback(parts.hostname or "")
