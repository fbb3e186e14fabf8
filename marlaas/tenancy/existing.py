"""Accounts and an operator's key for a deployment that had none; they are recorded while no scheduler runs."""

import re
import secrets
import time
from collections.abc import Iterable
from pathlib import Path

from common.access.claims import tenant_user_token
from common.access.credentials import write_credentials
from common.access.folder import SYSTEM, SigningKeys
from common.access.roles import ADMIN
from common.bus import Bus
from common.messages import NewKey, SetAccess, TenantAccess
from common.resilience import crashpoints
from common.spec.sections import NAME_PATTERN
from marlaas.tenancy.accounts import push_access

OPERATOR = "operator"
"""Name of the operator's key of the role admin."""


def admin_key(signing: SigningKeys) -> Path:
    """File of the operator's key of the role admin, which any NATS client can use for every tenant."""
    return signing.credentials(ADMIN)


def missing_records(signing: SigningKeys, found: Iterable[TenantAccess]) -> list[SetAccess]:
    """What PostgreSQL is to record: an account of this folder's for each tenant, and the operator's key. Seeds are made where missing."""
    requests = [request(tenant, account=signing.new_tenant(tenant).public) for tenant in names_for_accounts(found)]
    if not admin_key(signing).exists() or signing.is_pending(ADMIN, OPERATOR):
        requests.append(operators_key(signing))
    crashpoints.reached("before_record")
    return requests


def operators_key(signing: SigningKeys) -> SetAccess:
    """The request that records the operator's key of the role admin, whose seed is pending then."""
    return request(None, add=NewKey(key=signing.pending(ADMIN, OPERATOR).public, name=OPERATOR, role=ADMIN), beside=True)


def write_admin_key(signing: SigningKeys) -> None:
    """Write the file of the key that `missing_records` has recorded; nothing where it is there."""
    crashpoints.reached("before_creds")
    if signing.is_pending(ADMIN, OPERATOR):
        seed = signing.pending(ADMIN, OPERATOR)
        token = tenant_user_token(signing.admin, seed.public, OPERATOR, ADMIN, ADMIN, int(time.time()))
        write_credentials(admin_key(signing), token, seed)
        signing.made(ADMIN, OPERATOR)


async def push_accounts(signing: SigningKeys, url: str, found: Iterable[TenantAccess], *, insecure: bool = False) -> None:
    """Make NATS agree with what is recorded. `insecure`: the network is this deployment's alone.

    Raises: ClientError; Unavailable; Fatal when NATS refuses the folder's keys.
    """
    crashpoints.reached("before_push")
    async with await Bus.connect(url, OPERATOR, creds=signing.credentials(SYSTEM), insecure=insecure) as system:
        names = names_for_accounts(found)
        for one in found:
            if one.tenant is None or one.tenant in names:
                await push_access(signing, system, one)


def names_for_accounts(found: Iterable[TenantAccess]) -> list[str]:
    """Tenants' names, without those of older versions that no account may have, and those that are deleted."""
    return [one.tenant for one in found if one.tenant not in (None, ADMIN) and not one.deleted and re.fullmatch(NAME_PATTERN, one.tenant)]


def request(tenant: str | None, *, account: str | None = None, add: NewKey | None = None, beside: bool = False) -> SetAccess:
    """A request under an id of its own. The arguments are fields of `SetAccess`."""
    return SetAccess(tenant=tenant, request=f"init-{secrets.token_hex(6)}", account=account, add=add, beside=beside)
