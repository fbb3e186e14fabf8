"""Rules about keys: files in the folder of signing keys, and NATS's accounts against PostgreSQL."""

import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from common.access.claims import EVERYONE
from common.access.folder import SigningKeys
from common.access.keys import decode
from common.access.roles import ADMIN
from common.bus import Bus
from scheduler_svc.base.tables import keys, tenants
from scheduler_svc.doctor.violation import Violation

READABLE = "no key can be read by other users"
ACCOUNTS = "NATS has the account of every tenant with keys, and no other"
REVOKED = "NATS refuses exactly the keys that are revoked, and all of a suspended tenant"
RULES = (READABLE, ACCOUNTS, REVOKED)


@dataclass(frozen=True)
class Account:
    """An account that NATS should have, from PostgreSQL."""

    name: str
    """Tenant, or ADMIN."""
    public: str
    refused: frozenset[str]
    """Revoked public keys; EVERYONE if the tenant is suspended."""


async def read_accounts(connection: AsyncConnection, admin: str) -> list[Account]:
    """Accounts that NATS should have. `admin`: public key of the operators' account."""
    gone = select(keys.c.tenant, keys.c.key).where(keys.c.revoked_at.is_not(None))
    revoked = [(row.tenant, row.key) for row in (await connection.execute(gone)).all()]
    of_tenants = select(tenants.c.id, tenants.c.account, tenants.c.suspended_at).where(tenants.c.account.is_not(None))
    rows = (await connection.execute(of_tenants.where(tenants.c.deleted_by.is_(None)).order_by(tenants.c.id))).all()
    everyone = {row.id: {EVERYONE} for row in rows if row.suspended_at is not None}
    return [
        Account(name or ADMIN, public, frozenset({key for tenant, key in revoked if tenant == name} | everyone.get(name, set())))
        for name, public in [(None, admin), *((row.id, row.account) for row in rows)]
    ]


def examine_folder(folder: Path) -> list[Violation]:
    """Violations by the folder itself, and by all files in it."""
    return [
        Violation(READABLE, f"path={path}: mode {stat.S_IMODE(path.stat().st_mode):o}")
        for path in [folder, *sorted(folder.rglob("*"))]
        if path.stat().st_mode & 0o077 and path.suffix != ".conf"
    ]


async def examine_accounts(signing: SigningKeys, system: Bus, recorded: Collection[Account]) -> list[Violation]:
    """Violations of the rules about accounts. `system`: connection of the system account. Raises: Unavailable."""
    known = await system.accounts.known()
    own = {signing.system.public, signing.services.public, *(account.public for account in recorded)}
    found = [Violation(ACCOUNTS, f"account={public}: PostgreSQL has no such account") for public in sorted(known - own)]
    for account in recorded:
        token = await system.accounts.token(account.public)
        if token is None:
            found.append(Violation(ACCOUNTS, f"account={account.public} tenant={account.name}: NATS does not know it"))
        elif (refused := frozenset(decode(token)["nats"].get("revocations", {}))) != account.refused:
            missing, more = sorted(account.refused - refused), sorted(refused - account.refused)
            found.append(Violation(REVOKED, f"tenant={account.name} not_refused={missing} refused_though_valid={more}"))
    return found
