"""Connections to NATS on behalf of callers."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from common.bus import Bus
from common.door.asking import Door
from gateway_svc.access import Caller


class OpenAccess:
    """Of a server without keys: everybody acts for every tenant, by the gateway's own connection."""

    def __init__(self, bus: Bus, url: str) -> None:
        self._door = Door(bus, url)

    @asynccontextmanager
    async def entered(self, bearer: str | None) -> AsyncGenerator[Caller]:  # noqa: ARG002  a protocol's
        """A key that is given is ignored."""
        yield Caller(self._door, None, "admin", "")
