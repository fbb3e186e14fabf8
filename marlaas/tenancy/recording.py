"""PostgreSQL's records of accounts and keys, read and changed through the scheduler."""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from common.access.folder import SYSTEM, SigningKeys
from common.access.roles import ADMIN
from common.bus import NO_FILES, Bus, TlsFiles
from common.client_api.asking import Door, result_of
from common.client_api.errors import ClientError, NoAnswer
from common.messages import AccessAnswer, AskAccess, KeyRecord, SetAccess, TenantAccess

TIMEOUT_S = 60.0
CONNECT_S = 10.0


@dataclass(frozen=True)
class Operator:
    """The operator's connections to one deployment, and its signing keys."""

    signing: SigningKeys
    door: Door
    system: Bus
    """Connection of the system account, through which NATS accepts accounts' tokens."""


@asynccontextmanager
async def connected(signing: SigningKeys, url: str, *, insecure: bool = False, tls: TlsFiles = NO_FILES) -> AsyncGenerator[Operator]:
    """Connect with the signing keys. Raises: NoAnswer if NATS is unavailable; Fatal if NATS refuses these keys."""
    try:
        async with asyncio.timeout(CONNECT_S):
            bus = await Bus.connect(url, "operator", creds=signing.credentials("operator"), insecure=insecure, tls=tls)
            system = await Bus.connect(url, "operator", creds=signing.credentials(SYSTEM), insecure=insecure, tls=tls)
    except TimeoutError:
        raise NoAnswer(f"NATS does not answer at {url.rpartition('@')[2]}; is the stack running?") from None
    async with bus, system:
        yield Operator(signing, Door(bus, url), system)


async def read_all(door: Door) -> list[TenantAccess]:
    """Every tenant, by name, and the operators' keys before them. Raises: ClientError; NoAnswer."""
    found, cursor = list[TenantAccess](), None
    while True:
        page = await door.ask("access", AskAccess(cursor=cursor), AccessAnswer)
        found, cursor = [*found, *page.tenants], page.cursor
        if cursor is None:
            return found


async def read(door: Door, tenant: str) -> TenantAccess | None:
    """A tenant's access; None if there is no such tenant. `tenant`: ADMIN for the operators' keys. Raises: ClientError; NoAnswer."""
    if tenant == ADMIN:
        return next(one for one in await read_all(door) if one.tenant is None)
    return next(iter((await door.ask("access", AskAccess(), AccessAnswer, tenant=tenant)).tenants), None)


async def with_account(door: Door, tenant: str) -> TenantAccess:
    """A tenant's access, with an account. Raises: ClientError if there is no such tenant, or it has no account for keys; NoAnswer."""
    found = await read(door, tenant)
    if found is None:
        raise ClientError(f"there is no tenant '{tenant}'; `marlaas tenants list` shows those there are")
    if found.deleted:
        raise ClientError(f"tenant '{tenant}' is deleted, and its name is not used again")
    if tenant != ADMIN and found.account is None:
        raise ClientError(f"tenant '{tenant}' has no account for keys yet; next: marlaas tenants create {tenant}")
    return found


def valid_keys(access: TenantAccess, name: str) -> list[KeyRecord]:
    """Keys that are not revoked and have `name` as name or public key; oldest first."""
    return [one for one in access.keys if name in (one.name, one.key) and one.revoked is None]


async def record(door: Door, tenant: str, **changes: Any) -> None:
    """Record changes in PostgreSQL. `changes`: fields of `SetAccess`. Raises: ClientError with the reasons; NoAnswer."""
    named = None if tenant == ADMIN else tenant
    request = SetAccess(tenant=named, request=secrets.token_hex(6), **changes)
    await result_of(door, "set-access", named, request, request.request, TIMEOUT_S)
