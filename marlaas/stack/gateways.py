"""The address of a stack's gateway, as it follows from the gateway's settings."""

import os
from collections.abc import Mapping

from marlaas.stack import servers
from marlaas.stack.state_files import Gateway, Stack, StackError

PORT, HOST, CERTIFICATE, DRAIN = (f"MARLAAS_GATEWAY_{name}" for name in ("PORT", "HOST", "TLS_CERT", "DRAIN_S"))
"""Settings of the gateway (gateway_svc/settings.py)."""
DRAIN_S = "10"
"""Less than the time that the supervisor gives a process to end: a stack that stops has nobody left who answers a chat."""
DASHBOARD = "/ui"
"""Where the gateway has its pages."""
WILDCARDS = ("0.0.0.0", "::")


def environment(address: Gateway) -> dict[str, str]:
    return {PORT: str(address.port), DRAIN: os.environ.get(DRAIN, DRAIN_S)}


def gateway(port: int, settings: Mapping[str, str]) -> Gateway:
    """`settings`: environment variables of the service."""
    host = settings.get(HOST, servers.HOST)
    shown = servers.HOST if host in WILDCARDS else host
    scheme = "https" if settings.get(CERTIFICATE) else "http"
    return Gateway(port=port, url=f"{scheme}://{f'[{shown}]' if ':' in shown else shown}:{port}")


def dashboard(stack: Stack) -> str:
    """Address of the dashboard of a running stack. Raises: StackError when its gateway is not ready."""
    gateway = stack.component("gateway")
    if gateway.condition != "ready":
        raise StackError(f"the gateway is {gateway.condition}; next: marlaas status, then marlaas logs gateway")
    return f"{stack.gateway.url}{DASHBOARD}"
