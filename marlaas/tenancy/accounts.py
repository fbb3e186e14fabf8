"""Accounts of tenants: created, suspended, deleted with all data of the tenant, and synchronized from PostgreSQL to NATS."""

import asyncio
import math
import time
from typing import Any

from pydantic import JsonValue

from common.access.claims import EVERYONE, SUSPENDED_UNTIL_S, AccountLimits, deletion_token, tenant_token
from common.access.folder import ADMIN_LIMITS, SigningKeys, check_tenant_name, set_admin_revocations
from common.access.keys import decode
from common.access.roles import ADMIN
from common.bus import Bus
from common.client_api.errors import ClientError
from common.client_api.tenancy.tenants import delete_tenant
from common.messages import TenantAccess
from common.resilience import crashpoints
from marlaas.tenancy import recording
from marlaas.tenancy.recording import Operator

PUSHES = 8
PUSH_AGAIN_S = 0.5
"""Seconds before a push is repeated because another command has pushed concurrently."""


async def create_tenant(operator: Operator, name: str) -> bool:
    """Create a tenant with an account, in NATS too; False if it had this account.

    Raises: Fatal for an invalid name; ClientError; NoAnswer.
    """
    check_tenant_name(name)
    before = await recording.read(operator.door, name)
    if before is not None and before.deleted:
        raise ClientError(f"tenant '{name}' is deleted, and its name is not used again")
    account = operator.signing.new_tenant(name).public
    crashpoints.reached("before_record")
    await recording.record(operator.door, name, account=account)
    crashpoints.reached("before_push")
    await push_tenant(operator, name)
    return before is None or before.account != account


async def suspend_tenant(operator: Operator, name: str, *, suspended: bool) -> None:
    """Suspend a tenant, or end that: its connections are closed and refused; its tasks continue. Raises: ClientError; NoAnswer."""
    await recording.with_account(operator.door, name)
    await recording.record(operator.door, name, suspended=suspended)
    crashpoints.reached("before_push")
    await push_tenant(operator, name)


async def push_tenant(operator: Operator, name: str) -> bool:
    """Synchronize one tenant, or ADMIN, to NATS; returns whether anything changed. Raises: ClientError; NoAnswer; Fatal."""
    return await push_access(operator.signing, operator.system, await recording.with_account(operator.door, name))


async def push_all(operator: Operator, *, delete_others: bool, new_accounts: bool = False) -> tuple[list[str], set[str]]:
    """Synchronize all accounts from PostgreSQL to NATS; returns names of tenants that changed, and accounts that PostgreSQL does not have.

    `delete_others`: delete these accounts from NATS. `new_accounts`: replace accounts that are not of this folder's keys, which revokes the
    tenants' keys. Raises: ClientError; NoAnswer; Fatal if the folder lacks a tenant's key.
    """
    changed = await _renew_accounts(operator) if new_accounts else []
    found = [one for one in await recording.read_all(operator.door) if one.tenant is None or one.account is not None]
    changed += [one.tenant or ADMIN for one in found if await _synchronize(operator, one)]
    signing = operator.signing
    own = {signing.system.public, signing.services.public, signing.admin.public}
    others = await operator.system.accounts.known() - own - {one.account for one in found if one.account}
    if others and delete_others:
        await operator.system.accounts.delete(deletion_token(signing.operator, sorted(others), int(time.time())))
    return changed, others


async def _renew_accounts(operator: Operator) -> list[str]:
    """Replace accounts of other signing keys than this folder's; returns the names of their tenants."""
    tenants = [one.tenant for one in await recording.read_all(operator.door) if one.tenant and one.account and not one.deleted]
    return [name for name in tenants if await create_tenant(operator, name)]


async def remove_account(operator: Operator, name: str) -> None:
    """Delete a deleted tenant's account from NATS, and close its connections. Idempotent. Raises: ClientError; NoAnswer."""
    if (access := await recording.read(operator.door, name)) is not None:
        await _remove(operator, access)


async def _remove(operator: Operator, access: TenantAccess) -> bool:
    """Delete an account and its seed; returns whether NATS had the account."""
    assert access.tenant is not None and access.deleted
    known = access.account is not None and access.account in await operator.system.accounts.known()
    if known and access.account is not None:
        await operator.system.accounts.delete(deletion_token(operator.signing.operator, [access.account], int(time.time())))
    crashpoints.reached("before_seed_removed")
    operator.signing.forget_tenant(access.tenant)
    return known


async def _synchronize(operator: Operator, access: TenantAccess) -> bool:
    """Synchronize one account to NATS, or delete it if its tenant is deleted; returns whether NATS had to change."""
    return await (_remove(operator, access) if access.deleted else push_access(operator.signing, operator.system, access))


async def push_access(signing: SigningKeys, system: Bus, access: TenantAccess) -> bool:
    """Push one account's token, of a tenant or ADMIN; returns whether NATS had another one. Raises: ClientError; Unavailable; Fatal."""
    name = access.tenant or ADMIN
    account = signing.tenant(name).public
    if access.tenant is not None and account != access.account:
        raise ClientError(
            f"the folder of signing keys has another key of tenant '{name}' than PostgreSQL: restore the folder from its backup, or run"
            f" `marlaas tenants create {name}`, which gives the tenant the folder's; its users then need new keys"
        )
    revoked = revocations(access)
    if access.tenant is None:
        set_admin_revocations(signing, revoked)
    for attempt in range(PUSHES):
        present = await system.accounts.token(account)
        token = tenant_token(
            signing.operator,
            account,
            name,
            signing.services.public,
            max(int(time.time()), _made_at(present) + 1),
            limits=ADMIN_LIMITS if access.tenant is None else limits_of(access),
            revoked=revoked,
        )
        if _content(present) == _content(token):
            return attempt > 0
        await system.accounts.push(token)
        if _content(await system.accounts.token(account)) == _content(token):
            return True
        await asyncio.sleep(PUSH_AGAIN_S)
    raise ClientError(f"NATS does not take the account of '{name}'; its log says why")


def limits_of(access: TenantAccess) -> AccountLimits:
    return AccountLimits(connections=access.max_connections, message_bytes=access.max_message_bytes)


def revocations(access: TenantAccess) -> dict[str, int]:
    """Public key of a revoked user, or EVERYONE → Unix time; NATS refuses tokens made until then."""
    revoked = {one.key: math.ceil(one.revoked.timestamp()) for one in access.keys if one.revoked is not None}
    return revoked | ({EVERYONE: SUSPENDED_UNTIL_S} if access.suspended else {})


def _made_at(token: str | None) -> int:
    """Unix time at which a token was made; 0 without a token. NATS replaces a token only by one made in a later second."""
    return int(decode(token)["iat"]) if token else 0


def _content(token: str | None) -> dict[str, Any] | None:
    """Content of a token, without the time at which it was made. `Any`: it is JSON."""
    return {name: value for name, value in decode(token).items() if name not in ("iat", "jti")} if token else None


async def delete_with_account(operator: Operator, name: str, timeout_s: float) -> dict[str, JsonValue]:
    """Delete a tenant with its account; returns the receipt. If it was interrupted, repeat it: the account is then deleted, and an error
    reports the state of the tenant's data.

    Raises: ClientError if there is no such tenant, or it is deleted already; NoAnswer.
    """
    access = await recording.read(operator.door, name)
    if access is not None and access.account is not None and not access.deleted:
        await recording.record(operator.door, name, revoke=[one.key for one in access.keys if one.revoked is None])
        crashpoints.reached("before_push")
        await push_tenant(operator, name)
    try:
        receipt = await delete_tenant(operator.door, name, timeout_s)
    except ClientError:
        if access is not None and access.deleted:
            await remove_account(operator, name)
        raise
    crashpoints.reached("before_account_removed")
    await remove_account(operator, name)
    return receipt
