"""Settings of the gateway: `MARLAAS_GATEWAY_…`."""

import ipaddress
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator

from common.runtime.settings import Settings


def _words(value: object) -> object:
    return tuple(word for word in value.replace(",", " ").split()) if isinstance(value, str) else value


Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
"""Words, separated by commas."""


def _none(value: object) -> object:
    return None if value == "none" else value


LimitSetting = Annotated[Annotated[int, Field(ge=0)] | None, BeforeValidator(_none)]


class GatewaySettings(Settings):
    service: ClassVar[str] = "GATEWAY"
    secrets: ClassVar[tuple[str, ...]] = ("session_secret",)
    public_hosts: ClassVar[tuple[str, ...]] = ("host",)

    host: str = "127.0.0.1"
    """Address of the HTTP door. To listen beyond this machine, the gateway needs a key for NATS (MARLAAS_NATS_CREDS): without keys
    everybody who reaches it is an admin."""
    port: int = Field(default=8000, ge=0, le=65_535)
    """0: any free port, written to the log."""
    tls_cert: Path | None = None
    """Certificate file, if the gateway terminates TLS itself; needs `tls_key`."""
    tls_key: Path | None = None
    """File with the certificate's private key."""
    cors_origins: Words = ()
    """Origins, separated by commas, whose pages may use the door from a browser, such as `https://app.example.org`; empty: none. They send
    a key with each request: cookies are never permitted."""
    trusted_proxies: Words = ()
    """Addresses or networks of trusted proxies, separated by commas, whose X-Forwarded-For, -Proto and -Prefix are used; empty: none."""
    root_path: str = Field(default="", pattern=r"^(/[\w.~-]+)*$")
    """Path prefix under which a proxy publishes the door and which the proxy removes, such as `/marlaas`."""
    drain_s: float = Field(default=30.0, ge=0, le=3600)
    """Maximum seconds from SIGTERM until the last stream has ended."""
    body_bytes: int = Field(default=1024 * 1024, ge=1024)
    """Maximum bytes of a request's body, unless its route has its own limit."""
    timeout_s: float = Field(default=10.0, gt=0)
    """Maximum seconds for a request's header, and for an idle connection. A body may take as long, plus its time at 16 KiB/s."""
    first_token_s: float = Field(default=30.0, gt=0)
    """Maximum seconds until a replica begins a reply; a request not begun by then is answered 503 and never sampled."""
    submit_timeout_s: float = Field(default=10.0, gt=0)
    """Seconds to wait for the answer to a submission before the gateway answers 202."""

    requests_per_minute: LimitSetting = 12_000
    """Maximum requests per minute of a tenant over all gateways, unless the tenant has its own limit (`marlaas tenants set`); `none`: no
    limit. The next five settings work in the same way."""
    key_requests_per_minute: LimitSetting = 6_000
    """Maximum requests per minute of one key."""
    tokens_per_minute: LimitSetting = 10_000_000
    """Maximum tokens per minute served to a tenant, prompt tokens included."""
    key_tokens_per_minute: LimitSetting = 5_000_000
    """Maximum tokens per minute served to one key."""
    max_streams: LimitSetting = 1_000
    """Maximum replies sampled concurrently for a tenant; each choice of a request is one."""
    key_max_streams: LimitSetting = 500
    """Maximum replies sampled concurrently for one key."""

    session_secret: str | None = Field(default=None, min_length=32, repr=False)
    """Secret that encrypts the dashboard's sessions, the same for every gateway of a deployment: `openssl rand -hex 32`. Absent: the
    gateway's key for NATS; without one, each process creates a secret, so that users log in again after a restart, and at each replica."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key need each other")
        if "*" in self.cors_origins:
            raise ValueError("cors_origins: '*' is no origin; name each")
        for proxy in self.trusted_proxies:
            ipaddress.ip_network(proxy)
        return self
