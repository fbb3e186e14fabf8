"""The operator's key and the first tenant's, recorded and pushed while no scheduler runs."""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from common.access.claims import tenant_user_token
from common.access.credentials import write_credentials
from common.access.folder import SYSTEM, SigningKeys
from common.access.roles import ADMIN
from common.bus import Bus
from common.messages import NewKey, SetAccess, TenantAccess
from common.resilience import crashpoints
from marlaas.tenancy.accounts import push_access

OPERATOR = "operator"
"""Name of the operator's key of the role admin, which any NATS client can use for every tenant."""
FIRST_KEY = "first"
"""Name of the first tenant's key."""
Record = Callable[[Sequence[SetAccess]], list[TenantAccess]]
"""Records requests in PostgreSQL, and returns what it has then, the operators' access first."""


def open_accounts(signing: SigningKeys, url: str, first: str, creds: Path, record: Record) -> list[str]:
    """Make the operator's key, and the tenant `first` with an owner's key in `creds`, unless there are such; names of tenants made.

    Repeated, it completes what was interrupted. `url`: NATS, in the network of the containers, so that no TLS is asked for.
    Raises: ClientError; Unavailable; Fatal when NATS refuses the folder's keys, or no tenant can be named `first`.
    """
    found = record([])
    makes_operators = not signing.credentials(ADMIN).exists() or signing.is_pending(ADMIN, OPERATOR)
    makes_tenant = first != "" and (len(found) == 1 or signing.is_pending(first, FIRST_KEY))
    requests = [*([_operators(signing, found[0])] if makes_operators else []), *([_tenants(signing, first)] if makes_tenant else [])]
    if requests:
        crashpoints.reached("before_record")
        found = record(requests)
    if makes_operators:
        _write_key(signing, ADMIN, OPERATOR, signing.credentials(ADMIN))
        asyncio.run(_push(signing, url, found[0]))
        signing.made(ADMIN, OPERATOR)
    if makes_tenant:
        _write_key(signing, first, FIRST_KEY, creds / f"{first}.creds")
        asyncio.run(_push(signing, url, next(one for one in found if one.tenant == first)))
        signing.made(first, FIRST_KEY)
    return [first] if makes_tenant else []


def _operators(signing: SigningKeys, access: TenantAccess) -> SetAccess:
    """It revokes the key that it replaces, whose file was lost with its folder."""
    add = NewKey(key=signing.pending(ADMIN, OPERATOR).public, name=OPERATOR, role=ADMIN)
    lost = [one.key for one in access.keys if one.name == OPERATOR and not one.is_http and one.key != add.key]
    return SetAccess(tenant=None, request=_request(), add=add, beside=True, revoke=lost)


def _tenants(signing: SigningKeys, tenant: str) -> SetAccess:
    account = signing.new_tenant(tenant).public
    add = NewKey(key=signing.pending(tenant, FIRST_KEY).public, name=FIRST_KEY, role="owner")
    return SetAccess(tenant=tenant, request=_request(), account=account, add=add, beside=True)


def _request() -> str:
    return f"init-{secrets.token_hex(6)}"


def _write_key(signing: SigningKeys, tenant: str, name: str, to: Path) -> None:
    crashpoints.reached("before_creds")
    seed = signing.pending(tenant, name)
    role = ADMIN if tenant == ADMIN else "owner"
    write_credentials(to, tenant_user_token(signing.tenant(tenant), seed.public, name, tenant, role, int(time.time())), seed)


async def _push(signing: SigningKeys, url: str, access: TenantAccess) -> None:
    crashpoints.reached("before_push")
    async with await Bus.connect(url, OPERATOR, creds=signing.credentials(SYSTEM), insecure=True) as system:
        await push_access(signing, system, access)
