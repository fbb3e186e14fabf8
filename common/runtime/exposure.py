"""Starts that are refused: those that would let strangers in, or send them what a tenant may not see.

Loopback is the boundary of one machine. Beyond it NATS is reached with a key, or for one more release with a password; and no password
counts that this project's own files show.
"""

from common.bus import (
    has_credentials,
    is_beyond_loopback,
    is_loopback,
    objection_to_address,
    passwords_beyond_loopback,
    without_password,
)
from common.runtime.settings import Settings

KNOWN_PASSWORDS = frozenset({"marlaas", "changeme"})
"""Passwords that stand in this project's files."""


def objection_to_exposure(settings: Settings) -> str | None:
    """Why a service with these settings must not start, and what to do; None when it may."""
    if objection_to_address(settings.nats_url) is not None:
        return None  # the bus says so
    if settings.nats_creds is None and not has_credentials(settings.nats_url):
        if is_beyond_loopback(settings.nats_url):
            return (
                f"MARLAAS_NATS_URL: {without_password(settings.nats_url)} is not on this machine, and needs a key; name its file in"
                " MARLAAS_NATS_CREDS (docs/tenancy.md)"
            )
        if not is_loopback(settings.http_host):
            return (
                f"MARLAAS_HTTP_HOST: {settings.http_host} is reached from other machines, which needs a key for NATS; name its file in"
                " MARLAAS_NATS_CREDS (docs/tenancy.md), or listen on 127.0.0.1"
            )
    return _objection_to_users(settings) or (None if settings.nats_insecure else _objection_to_passwords(settings))


def _objection_to_users(settings: Settings) -> str | None:
    """Without keys there are no tenants: each user of this service would be the operator."""
    for field in settings.public_hosts if settings.nats_creds is None else ():
        host = getattr(settings, field)
        if not is_loopback(host):
            return (
                f"{settings.variable(field)}: {host} is reached from other machines, and without keys everybody there is the operator; name"
                " the file of this service's key in MARLAAS_NATS_CREDS (docs/tenancy.md), or listen on 127.0.0.1"
            )
    return None


def _objection_to_passwords(settings: Settings) -> str | None:
    for field in (secret for secret in settings.secrets if secret.endswith("_url")):
        if passwords_beyond_loopback(getattr(settings, field)) & KNOWN_PASSWORDS:
            return f"{settings.variable(field)}: beyond this machine its password is one that everybody knows; choose another"
    return None


def warning_about_password(settings: Settings) -> str | None:
    """What a password for NATS means; None where none is used."""
    if settings.nats_creds is not None or not has_credentials(settings.nats_url):
        return None
    return "every holder of NATS's password is the operator; the next release takes keys only (docs/tenancy.md)"
