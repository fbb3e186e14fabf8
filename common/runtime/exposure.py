"""Starts that are refused: those that would let strangers in, or send them what a tenant may not see.

Loopback is the boundary of one machine. Beyond it NATS is reached with a key.
"""

from common.bus import is_beyond_loopback, is_loopback, objection_to_address, without_password
from common.runtime.settings import Settings


def objection_to_exposure(settings: Settings) -> str | None:
    """Why a service with these settings must not start, and what to do; None when it may."""
    if settings.nats_creds is not None or objection_to_address(settings.nats_url) is not None:
        return None  # the bus reports a wrong address
    if is_beyond_loopback(settings.nats_url):
        return (
            f"MARLAAS_NATS_URL: {without_password(settings.nats_url)} is not on this machine, and needs a key; name its file in"
            " MARLAAS_NATS_CREDS (docs/tenancy.md)"
        )
    for field in ("http_host", *settings.public_hosts):
        host = getattr(settings, field)
        if not is_loopback(host):
            return (
                f"{settings.variable(field)}: {host} is reached from other machines, which needs a key for NATS; name its file in"
                " MARLAAS_NATS_CREDS (docs/tenancy.md), or listen on 127.0.0.1"
            )
    return None
