"""Preparation of a compose deployment, before its services: keys and passwords in the volumes, and the first accounts.

Both steps run at each `up`, and do nothing once they are complete; an interrupted one is completed by the next run.
"""

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.access.claims import tenant_user_token
from common.access.credentials import write_credentials
from common.access.folder import SYSTEM, SigningKeys, holds_keys, open_folder
from common.access.roles import ADMIN
from common.access.services import Deployment
from common.bus import Bus
from common.messages import NewKey, SetAccess, TenantAccess
from common.passwords import new_password, read_passwords, scram_verifier, write_passwords
from common.resilience import crashpoints
from marlaas.stack import database_folder, keys, servers
from marlaas.stack.database_folder import APP, OWNER, READER
from marlaas.stack.state_files import StackError
from marlaas.tenancy.accounts import push_access

SERVICE_USER = 10_001
"""User id of the services' images (Dockerfile)."""
NATS_USER = 65_532
"""User id of the container `nats` (docker-compose.yml)."""
SERVICES = ("scheduler", "gateway", "env", "trainer", "rollout")
"""Services with their own volume for secrets; `migrate` has another."""
CREDS = "nats.creds"
PASSWORDS = "pgpass"
RESOLVER = "/data/accounts"
"""Folder of tenants' tokens, inside the container `nats`."""
OPERATOR = "operator"
"""Name of the operator's key of the role admin, which any NATS client can use for every tenant."""
FIRST_KEY = "first"
"""Name of the first tenant's key."""


@dataclass(frozen=True)
class Volumes:
    """Folders below `root`, one for each volume."""

    root: Path
    service_user: int = SERVICE_USER
    nats_user: int = NATS_USER

    @property
    def keys(self) -> Path:
        """Signing keys. Only `init`, `accounts` and `marlaas` have this volume; no service does."""
        return self.root / "keys"

    @property
    def creds(self) -> Path:
        """Tenants' keys, until they are copied out."""
        return self.root / "creds"

    @property
    def nats(self) -> Path:
        """Folder with NATS's store in its folder `jetstream`, as `marlaas.stack.keys` expects it."""
        return self.root / "nats"

    @property
    def nats_store(self) -> Path:
        return self.nats / servers.STORE

    @property
    def nats_access(self) -> Path:
        """Account section of NATS's configuration."""
        return self.root / "nats-access"

    @property
    def postgres_access(self) -> Path:
        """SQL statement that sets the password of PostgreSQL's superuser."""
        return self.root / "postgres-access"

    def secrets(self, service: str) -> Path:
        return self.root / "secrets" / service

    @property
    def passwords(self) -> Path:
        """libpq password file with every role's password."""
        return self.secrets("migrate") / PASSWORDS


def publish(path: Path, text: str, user: int, *, mode: int = 0o600) -> None:
    """Write a file for one user. Content and owner are set before it gets its name, so a running service never sees a partial file."""
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(file, "w") as written:
        os.fchmod(file, mode)
        os.fchown(file, user, user)
        written.write(text)
        written.flush()
        os.fsync(file)
    part.replace(path)


def give(folder: Path, user: int) -> None:
    """Give a folder with its content to a user, and close it to others."""
    folder.chmod(0o700)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user, follow_symlinks=False)


def prepare(volumes: Volumes, deployment: Deployment, *, rekey: bool = False) -> bool:
    """Make missing files, and write to each volume those that its service needs; returns whether keys were made. May be repeated.

    `rekey`: make new keys for a deployment whose volume of keys was lost or stolen.
    Raises: StackError, before any change, if the streams belong to other keys; with `rekey`, if they belong to these keys, which
    are then not lost. Raises: Fatal if the folder of keys is incomplete.
    """
    is_new = not holds_keys(volumes.keys)
    volumes.keys.chmod(0o700)
    if rekey:
        keys.rekey(volumes.keys, volumes.nats)
    elif keys.belongs_to_accounts(volumes.nats) and not keys.has_store_of(volumes.keys, volumes.nats):
        raise StackError(
            "the volume `nats` holds streams of other keys than those in the volume `keys`. Restore that one from its backup;"
            ' docs/tenancy.md, "Lost or stolen signing keys", says what to do without one'
        )
    write_database_secrets(volumes)
    crashpoints.reached("before_keys")
    accounts = keys.prepared(volumes.keys, volumes.nats, deployment, resolver=RESOLVER)
    crashpoints.reached("before_secrets")
    publish(volumes.nats_access / "nats.conf", accounts, volumes.nats_user)
    signing = open_folder(volumes.keys)
    for service in SERVICES:
        volumes.secrets(service).chmod(0o700)
        publish(volumes.secrets(service) / CREDS, signing.credentials(service).read_text(), volumes.service_user)
    for folder in (volumes.keys, volumes.creds, volumes.secrets("migrate"), *map(volumes.secrets, SERVICES)):
        give(folder, volumes.service_user)
    for folder in (volumes.nats_access, volumes.nats_store):  # a new volume belongs to root, and NATS runs as another user
        os.chown(folder, volumes.nats_user, volumes.nats_user)
    return is_new


def write_database_secrets(volumes: Volumes) -> None:
    """Write passwords of PostgreSQL's roles: all of them for `migrate`, the scheduler's own for the scheduler.

    PostgreSQL itself gets a hash, from which no password can be derived, in a statement executed when the volume is initialised.
    """
    known = read_passwords(volumes.passwords)
    passwords = {role: known.get(role) or new_password() for role in (database_folder.ADMIN, OWNER, APP, READER)}
    write_passwords(volumes.passwords, passwords)
    crashpoints.reached("before_passwords")
    for_scheduler = volumes.secrets("scheduler") / PASSWORDS
    publish(for_scheduler, f"*:*:*:{APP}:{passwords[APP]}\n", volumes.service_user)
    # Readable by every user in that container, because the image chooses the user that initialises the database.
    statement = f"ALTER ROLE {database_folder.ADMIN} PASSWORD '{scram_verifier(passwords[database_folder.ADMIN])}';\n"
    publish(volumes.postgres_access / "password.sql", statement, 0, mode=0o644)


Record = Callable[[Sequence[SetAccess]], list[TenantAccess]]
"""Records requests in PostgreSQL; returns its content afterwards, the operators' access first."""


def open_accounts(signing: SigningKeys, url: str, first: str, creds: Path, record: Record) -> list[str]:
    """Make the operator's key, and the tenant `first` with an owner's key in `creds`, unless they exist; returns names of tenants made.

    Repeated, it completes an interrupted run. `url`: NATS inside the containers' network, where TLS is not required.
    Raises: ClientError; Unavailable; Fatal if NATS refuses the folder's keys, or `first` is not a valid name.
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
    """Request that records the operator's key, and revokes the key that it replaces, whose file was lost with its folder."""
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
