"""Headers of proxies, which count from named addresses only."""

import ipaddress
import re
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

PREFIX = re.compile(r"^(/[\w.~-]+){1,8}$")


class Forwarded:
    """Sets the client, the scheme and the prefix of the path as a named proxy says."""

    def __init__(self, app: ASGIApp, proxies: Sequence[str]) -> None:
        self._app = app
        self._proxies = [ipaddress.ip_network(proxy) for proxy in proxies]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        if scope["type"] == "http" and client is not None and self._is_named(client[0]):
            headers = Headers(scope=scope)
            if (scheme := headers.get("x-forwarded-proto", "").lower()) in ("http", "https"):
                scope["scheme"] = scheme
            if sender := self._sender(headers.getlist("x-forwarded-for")):
                scope["client"] = (sender, 0)
            prefix = headers.get("x-forwarded-prefix", "").rstrip("/")
            if PREFIX.match(prefix) and not scope["root_path"]:
                scope["root_path"], scope["path"] = prefix, prefix + scope["path"]
        await self._app(scope, receive, send)

    def _is_named(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(found in proxy for proxy in self._proxies)

    def _sender(self, forwarded: Sequence[str]) -> str | None:
        """The last address that no named proxy has: those before it are what the client says of itself."""
        addresses = [address.strip() for line in forwarded for address in line.split(",") if address.strip()]
        return next((address for address in reversed(addresses) if not self._is_named(address)), None)
