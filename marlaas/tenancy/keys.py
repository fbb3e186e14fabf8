"""Keys made, given to their holders, rotated and revoked."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from common.access.claims import tenant_user_token
from common.access.credentials import read_credentials, refuse_readable_by_others, write_credentials, write_secret
from common.access.folder import SigningKeys
from common.access.keys import Seed, digest_of, http_key, seed_of
from common.access.roles import ADMIN, Role
from common.client_api.errors import ClientError
from common.errors import Fatal
from common.messages import HttpPart, NewKey
from common.resilience import crashpoints
from marlaas.tenancy import accounts, recording
from marlaas.tenancy.recording import Operator, valid_keys

OWN = "operator"
"""Name of the operator's own key for gateways."""


@dataclass(frozen=True)
class Receiver:
    """Destination of a new key: its holder's file, or output."""

    file: Path | None
    """File for the key; None for an HTTP key, which is printed."""
    show: Callable[[str], None]

    def give(self, seed: Seed, token: str, *, is_http: bool) -> None:
        if self.file is None:
            self.show(http_key(seed))
        elif is_http:
            write_secret(self.file, http_key(seed) + "\n")
        else:
            write_credentials(self.file, token, seed)

    def refuse_unfit(self, signing: SigningKeys, tenant: str, name: str, *, is_http: bool) -> None:
        """Check the file before a key is made.

        Raises: ClientError if a key for NATS has no file, if the file's folder does not exist, or if the file exists and no interrupted
        command has written it.
        """
        if self.file is None:
            if is_http:
                return
            raise ClientError(f"key '{name}' is one for NATS, which is written to a file; name one with --to")
        if not self.file.parent.is_dir():
            raise ClientError(f"there is no folder {self.file.parent} for the key; make it first")
        pending = signing.pending(tenant, name) if signing.is_pending(tenant, name) else None
        if self.file.exists() and (pending is None or not _holds(self.file, pending, is_http=is_http)):
            raise ClientError(f"{self.file} is there already; name another file, so that no key is lost")


def _holds(file: Path, seed: Seed, *, is_http: bool) -> bool:
    try:
        if not is_http:
            return read_credentials(file).public == seed.public
        refuse_readable_by_others(file)
        return file.read_text().strip() == http_key(seed)
    except (Fatal, OSError, UnicodeDecodeError):
        return False


async def create_key(
    operator: Operator, tenant: str, name: str, role: Role, to: Receiver, ends: datetime | None, *, is_http: bool = False
) -> None:
    """Make a key, and give it to its holder. Repeat an interrupted command: it gives the same key.

    `is_http`: whether it is for a gateway, by HTTP, instead of for NATS.
    Raises: ClientError if the tenant is unknown, the name is taken, or the file exists; NoAnswer; Fatal.
    """
    access = await recording.with_account(operator.door, tenant)
    if (role == "admin") != (tenant == ADMIN):
        raise ClientError(f"the role admin is that of '{ADMIN}', which acts for all tenants; a tenant's are owner, member and reader")
    resumed = operator.signing.is_pending(tenant, name)
    for known in valid_keys(access, operator.signing.pending(tenant, name).public) if resumed else []:
        role, ends = known.role, known.ends  # as recorded by the interrupted command
        if known.is_http != is_http:
            kind = "with --http" if known.is_http else "without --http"
            raise ClientError(f"a command that was interrupted has made key '{name}' {kind}; repeat that one, or revoke the key")
    if not resumed and valid_keys(access, name):
        raise ClientError(f"tenant '{tenant}' has a key '{name}' already; rotate or revoke it, or choose another name")
    to.refuse_unfit(operator.signing, tenant, name, is_http=is_http)
    new = NewKey(key=operator.signing.pending(tenant, name).public, name=name, role=role, ends=ends)
    await _make(operator, tenant, new, to, is_http=is_http, beside=resumed)
    operator.signing.made(tenant, name)


async def rotate_key(operator: Operator, tenant: str, name: str, to: Receiver, *, keep_old: bool) -> None:
    """Make a key of the same kind, name, role and end, then revoke the old one. Repeat an interrupted command to complete it.

    `keep_old`: leave the old key valid until `revoke_key` is called with its public key. Raises: as `create_key`.
    """
    access = await recording.with_account(operator.door, tenant)
    old = valid_keys(access, name)
    if not old:
        raise ClientError(f"tenant '{tenant}' has no valid key '{name}'; `marlaas keys list {tenant}` shows its keys")
    if (end := old[-1].ends) is not None and end <= datetime.now(UTC):
        raise ClientError(f"key '{name}' of '{tenant}' ended on {end:%Y-%m-%d %H:%M} UTC; revoke it, and create another")
    name, is_http = old[-1].name, old[-1].is_http
    to.refuse_unfit(operator.signing, tenant, name, is_http=is_http)
    new = NewKey(key=operator.signing.pending(tenant, name).public, name=name, role=old[-1].role, ends=old[-1].ends)
    await _make(operator, tenant, new, to, is_http=is_http, beside=True)
    crashpoints.reached("before_revoke")
    if not keep_old:
        await recording.record(operator.door, tenant, revoke=[one.key for one in old if one.key != new.key])
        crashpoints.reached("before_push")
        await accounts.push_tenant(operator, tenant)
    operator.signing.made(tenant, name)


async def revoke_key(operator: Operator, tenant: str, name: str) -> int:
    """Revoke all keys of that name, or the one key with that public key, and close their connections; returns how many were valid.

    Raises: ClientError; NoAnswer.
    """
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


async def own_http_key(operator: Operator) -> str:
    """Text of the operator's own key for gateways, made if there is no valid one. Raises: as `create_key`."""
    file = operator.signing.folder / "creds" / f"{OWN}.key"
    valid = valid_keys(await recording.with_account(operator.door, ADMIN), OWN)
    seed = seed_of(file.read_text().strip()) if file.exists() else None
    if seed is None or seed.public not in [one.key for one in valid]:
        file.unlink(missing_ok=True)
        if valid:  # its file is lost
            await rotate_key(operator, ADMIN, OWN, Receiver(file, print), keep_old=False)
        else:
            await create_key(operator, ADMIN, OWN, "admin", Receiver(file, print), None, is_http=True)
    return file.read_text().strip()


async def _make(operator: Operator, tenant: str, new: NewKey, to: Receiver, *, is_http: bool, beside: bool) -> None:
    """Record a key in PostgreSQL, then give it to its holder: only a recorded key opens NATS. `new`: the key, whose seed is pending in the
    signing folder. `beside`: as in `SetAccess`."""
    seed, account = operator.signing.pending(tenant, new.name), operator.signing.tenant(tenant)
    end_s = int(new.ends.timestamp()) if new.ends else 0
    token = tenant_user_token(account, seed.public, new.name, tenant, new.role, int(time.time()), end_s)
    http = HttpPart(digest=digest_of(http_key(seed)), token=token) if is_http else None
    crashpoints.reached("before_record")
    await recording.record(operator.door, tenant, add=new.model_copy(update={"http": http}), beside=beside)
    crashpoints.reached("before_creds")
    to.give(seed, token, is_http=is_http)
