"""Keys made, rotated and revoked."""

import time
from datetime import UTC, datetime
from pathlib import Path

from common import crashpoints
from common.access.claims import tenant_user_token
from common.access.credentials import read_credentials, write_credentials
from common.access.folder import SigningKeys
from common.access.keys import Seed
from common.access.roles import ADMIN, Role
from common.door.errors import ClientError
from common.errors import Fatal
from common.messages import NewKey
from marlaas.tenancy import accounts, recording
from marlaas.tenancy.recording import Operator, valid_keys


async def create_key(operator: Operator, tenant: str, name: str, role: Role, to: Path, ends: datetime | None) -> None:
    """Make a key, and write it to the file `to`. An interrupted command is completed by repeating it.

    Raises: ClientError when the tenant is unknown, the name is taken, or the file is there; NoAnswer; Fatal.
    """
    access = await recording.with_account(operator.door, tenant)
    if (role == "admin") != (tenant == ADMIN):
        raise ClientError(f"the role admin is that of '{ADMIN}', which acts for all tenants; a tenant's are owner, member and reader")
    resumed = operator.signing.is_pending(tenant, name)
    for known in valid_keys(access, operator.signing.pending(tenant, name).public) if resumed else []:
        role, ends = known.role, known.ends  # as the interrupted command has recorded them
    if not resumed and valid_keys(access, name):
        raise ClientError(f"tenant '{tenant}' has a key '{name}' already; rotate or revoke it, or choose another name")
    _refuse_present(operator.signing, to, tenant, name)
    await _make(operator, tenant, name, role, to, ends, beside=resumed)
    operator.signing.made(tenant, name)


async def rotate_key(operator: Operator, tenant: str, name: str, to: Path, *, keep_old: bool) -> None:
    """Make a successor with the same name, role and end, then revoke the key. An interrupted command is completed by repeating it.

    `keep_old`: leave it valid, until `revoke_key` is given its public key. Raises: as `create_key`.
    """
    access = await recording.with_account(operator.door, tenant)
    old = valid_keys(access, name)
    if not old:
        raise ClientError(f"tenant '{tenant}' has no valid key '{name}'; `marlaas keys list {tenant}` shows its keys")
    if (end := old[-1].ends) is not None and end <= datetime.now(UTC):
        raise ClientError(f"key '{name}' of '{tenant}' ended on {end:%Y-%m-%d %H:%M} UTC; revoke it, and create another")
    _refuse_present(operator.signing, to, tenant, name)
    new = await _make(operator, tenant, old[-1].name, old[-1].role, to, old[-1].ends, beside=True)
    crashpoints.reached("before_revoke")
    if not keep_old:
        await recording.record(operator.door, tenant, revoke=[one.key for one in old if one.key != new.public])
        crashpoints.reached("before_push")
        await accounts.push_tenant(operator, tenant)
    operator.signing.made(tenant, name)


async def revoke_key(operator: Operator, tenant: str, name: str) -> int:
    """Revoke all keys of that name, or one public key, and close their connections; how many were valid. Raises: ClientError; NoAnswer."""
    access = await recording.with_account(operator.door, tenant)
    valid = [one.key for one in valid_keys(access, name)]
    if not valid and not any(name in (one.name, one.key) for one in access.keys):
        raise ClientError(f"tenant '{tenant}' has no key '{name}'; `marlaas keys list {tenant}` shows its keys")
    if valid:
        await recording.record(operator.door, tenant, revoke=valid)
    crashpoints.reached("before_push")
    await accounts.push_tenant(operator, tenant)
    operator.signing.made(tenant, name)
    return len(valid)


async def _make(operator: Operator, tenant: str, name: str, role: Role, to: Path, ends: datetime | None, *, beside: bool) -> Seed:
    """PostgreSQL knows a key before there is a file that opens NATS with it."""
    seed, account = operator.signing.pending(tenant, name), operator.signing.tenant(tenant)
    crashpoints.reached("before_record")
    await recording.record(operator.door, tenant, add=NewKey(key=seed.public, name=name, role=role, ends=ends), beside=beside)
    crashpoints.reached("before_creds")
    end_s = int(ends.timestamp()) if ends else 0
    write_credentials(to, tenant_user_token(account, seed.public, name, tenant, role, int(time.time()), end_s), seed)
    return seed


def _refuse_present(signing: SigningKeys, to: Path, tenant: str, name: str) -> None:
    """Raises: ClientError when `to` is there and is not what an interrupted command wrote, or its folder is not there."""
    if not to.parent.is_dir():
        raise ClientError(f"there is no folder {to.parent} for the key; make it first")
    if not to.exists():
        return
    try:
        is_ours = signing.is_pending(tenant, name) and read_credentials(to).public == signing.pending(tenant, name).public
    except Fatal:
        is_ours = False
    if not is_ours:
        raise ClientError(f"{to} is there already; name another file, so that no key is lost")
