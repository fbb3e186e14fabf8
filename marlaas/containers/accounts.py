"""The operator's key and the first tenant's, recorded and pushed while no scheduler runs."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from common.access.claims import tenant_user_token
from common.access.credentials import write_credentials
from common.access.folder import SigningKeys
from common.access.roles import ADMIN
from common.messages import NewKey, SetAccess, TenantAccess
from common.resilience import crashpoints
from marlaas.containers.preparation import FROM_EXISTING
from marlaas.tenancy import existing

FIRST_KEY = "first"
"""Name of the first tenant's key."""
Record = Callable[[Sequence[SetAccess]], list[TenantAccess]]
"""Records requests in PostgreSQL, and returns what it has then, the operators' access first."""


def open_accounts(signing: SigningKeys, url: str, first: str, creds: Path, record: Record) -> list[str]:
    """Make the operator's key, and the tenant `first` with an owner's key in `creds`, unless there are such; names of tenants made.

    Tenants of a deployment that had no keys get accounts instead. Repeated, it completes what was interrupted. `url`: NATS, in the network
    of the containers, so that no TLS is asked for.
    Raises: ClientError; Unavailable; Fatal when NATS refuses the folder's keys, or no tenant can be named `first`.
    """
    found, mark = record([]), signing.folder / FROM_EXISTING
    if mark.exists():
        found = record(existing.missing_records(signing, found))
        existing.write_admin_key(signing)
        asyncio.run(existing.push_accounts(signing, url, found, insecure=True))
        mark.unlink()
        return existing.names_for_accounts(found)
    makes_tenant = first != "" and (len(found) == 1 or signing.is_pending(first, FIRST_KEY))
    requests = [*_operators(signing, found[0]), *([_tenants(signing, first)] if makes_tenant else [])]
    if requests:
        crashpoints.reached("before_record")
        found = record(requests)
    existing.write_admin_key(signing)
    if makes_tenant:
        _write_key(signing, first, creds / f"{first}.creds")
        own = [one for one in found if one.tenant == first]
        asyncio.run(existing.push_accounts(signing, url, own, insecure=True))
        signing.made(first, FIRST_KEY)
    return [first] if makes_tenant else []


def _operators(signing: SigningKeys, access: TenantAccess) -> list[SetAccess]:
    """A request for the operator's key, where none was ever made, or one was not finished."""
    if access.keys and not signing.is_pending(ADMIN, existing.OPERATOR):
        return []
    return [existing.operators_key(signing)]


def _tenants(signing: SigningKeys, tenant: str) -> SetAccess:
    account, seed = signing.new_tenant(tenant).public, signing.pending(tenant, FIRST_KEY)
    add = NewKey(key=seed.public, name=FIRST_KEY, role="owner")
    return existing.request(tenant, account=account, add=add, beside=True)


def _write_key(signing: SigningKeys, tenant: str, to: Path) -> None:
    crashpoints.reached("before_creds")
    seed = signing.pending(tenant, FIRST_KEY)
    token = tenant_user_token(signing.tenant(tenant), seed.public, FIRST_KEY, tenant, "owner", int(time.time()))
    write_credentials(to, token, seed)
