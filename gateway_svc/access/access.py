"""Who sends a request: a key is exchanged for what it may do on NATS."""

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from common.client_api.asking import Door
from common.errors import MarlaasError
from common.messages.tenancy.access import Role


class Unauthorized(MarlaasError):
    """No key, or none that is valid: the answer is the same for all of them."""


@dataclass(frozen=True)
class Caller:
    """The sender of a request."""

    door: Door
    """What its key opens; NATS refuses what the key's role does not permit."""
    tenant: str | None
    """None for an admin, who acts for every tenant."""
    role: Role
    key: str
    """The key's public part; empty on a server without keys."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the key is revoked or has ended: streams end with it."""


class Access(Protocol):
    def entered(self, bearer: str | None) -> AbstractAsyncContextManager[Caller]:
        """The caller, for the time of one request. Raises: Unauthorized; Unavailable when NATS does not answer."""
        ...
