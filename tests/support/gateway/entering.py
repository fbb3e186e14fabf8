"""HTTP keys made as the operator's command makes them, and a gateway's side of them on real servers."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from common.access.keys import digest_of
from common.access.roles import Role
from common.bus import Bus
from common.client_api.asking import Door
from common.messages import AskTasks, HttpKey, TasksAnswer
from common.streams import HTTP_KEYS_BUCKET
from gateway_svc.access import HttpKeys, KeyAccess, Nats
from marlaas.tenancy import accounts, keys, recording
from marlaas.tenancy.keys import Receiver
from marlaas.tenancy.recording import Operator
from tests.support.buses import HASTY
from tests.support.keyed import Keyed
from tests.support.waiting import at_work, eventually


@dataclass(frozen=True)
class Entering:
    """The operator, and one gateway."""

    operator: Operator
    bus: Bus
    """The gateway's own connection."""
    keys: HttpKeys
    access: KeyAccess
    shown: list[str] = field(default_factory=list[str])

    async def tenant(self, name: str) -> None:
        await accounts.create_tenant(self.operator, name)

    async def key(self, tenant: str, name: str, role: Role = "member", *, ends: datetime | None = None) -> str:
        """Text of a new key, which the gateway has heard of."""
        await keys.create_key(self.operator, tenant, name, role, Receiver(None, self.shown.append), ends, is_http=True)
        await self.is_told(self.shown[-1])
        return self.shown[-1]

    async def is_told(self, text: str) -> None:
        await eventually(lambda: self.keys.find(digest_of(text)) is not None, 30)

    async def stored(self) -> dict[str, HttpKey]:
        """Digest → what NATS has."""
        return {one.digest: one for one in await self.operator.door._bus.kv.values(HTTP_KEYS_BUCKET, HttpKey)}


VALID: dict[str, tuple[str, Role]] = {
    "reader": ("acme", "reader"),
    "member": ("acme", "member"),
    "owner": ("acme", "owner"),
    "foreign": ("globex", "owner"),
    "admin": ("admin", "admin"),
}
"""Name → tenant and role of a key."""


@dataclass(frozen=True)
class Keyring:
    """A key of each kind that a route may be tried with, by name."""

    valid: dict[str, str]
    invalid: dict[str, str]
    """Answered 401 by every route, with one text."""


@asynccontextmanager
async def with_keys(keyed: Keyed) -> AsyncGenerator[tuple[Entering, Keyring]]:
    """The tenants acme and globex, and keys: of each role, of another tenant, revoked, ended, unknown, garbage and none."""
    ahead_s = 0.0
    async with entering(keyed, clock=lambda: time.time() + ahead_s) as made:
        for tenant in ("acme", "globex"):
            await made.tenant(tenant)
        valid = {name: await made.key(tenant, name, role) for name, (tenant, role) in VALID.items()}
        revoked = await made.key("acme", "revoked", "owner")
        await keys.revoke_key(made.operator, "acme", "revoked")
        await eventually(lambda: made.keys.find(digest_of(revoked)) is None)
        ended = await made.key("acme", "ended", "owner", ends=datetime.now(UTC) + timedelta(days=1))
        ahead_s = 86_401.0
        assert made.keys.find(digest_of(ended)) is None
        yield made, Keyring(valid, {"none": "", "garbage": "x", "unknown": f"mk-{'A' * 43}", "revoked": revoked, "ended": ended})


@asynccontextmanager
async def entering(keyed: Keyed, clock: Any = None, reread_s: float = 1.0, **limits: Any) -> AsyncGenerator[Entering]:
    """`clock`: in place of the gateway's. `reread_s`: of the keys. `limits`: fields of `Nats`."""
    async with recording.connected(keyed.keys, keyed.url) as operator, await keyed.connect("gateway") as bus:
        keys = HttpKeys(bus, reread_s=reread_s, **({"clock": clock} if clock else {}))
        access = KeyAccess(keys, replace(Nats(keyed.url, "gateway", timings=HASTY, connect_s=60.0), **limits))
        async with at_work(access.run()):
            yield Entering(operator, bus, keys, access)


async def asks(door: Door, tenant: str | None = None) -> TasksAnswer:
    return await door.ask("tasks", AskTasks(), TasksAnswer, tenant=tenant)
