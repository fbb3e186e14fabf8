"""The folder of signing keys: its holder can make every tenant and every key.

    operator.seed  system.seed  services.seed  admin.seed      one line each
    tenants/<tenant>.seed
    pending/<tenant>.<key>.seed                            keys that a command has not finished making
    creds/<service>.creds  creds/system.creds                  credentials of services and of `marlaas tenants push`
    creds/admin.creds                                          the operator's key of the role admin, of `marlaas containers accounts`
    creds/operator.key                                         the operator's HTTP key of the role admin, of `marlaas chat`
    nats.conf                                                  NATS's account configuration; nothing secret

The folder has mode 0700, its files 0600. No service needs the folder: each is given its own creds file.
"""

import re
import time
from dataclasses import dataclass
from pathlib import Path

from common.access import claims
from common.access.claims import AccountLimits
from common.access.credentials import SEED, refuse_readable_by_others, write_credentials, write_secret
from common.access.keys import Kind, Seed
from common.access.roles import ADMIN
from common.access.rows import Permissions
from common.access.services import SERVICES, Deployment, service_permissions
from common.errors import Fatal
from common.spec.sections import NAME_PATTERN

OPERATOR, SYSTEM, SERVICES_ACCOUNT = "operator", "system", "services"
SYSTEM_PERMISSIONS = Permissions(("$SYS.REQ.CLAIMS.>", "$SYS.REQ.ACCOUNT.*.CLAIMS.LOOKUP"), ("_INBOX.>",), "_INBOX")
"""Permissions of `marlaas tenants push`: accounts' tokens, and nothing about the server itself."""
MAX_CONTROL_LINE_BYTES = 262_144
"""Maximum protocol line: a client sends its key in one line when it connects, and a service's key names its consumers. NATS's default is 4
KiB."""
ADMIN_LIMITS = AccountLimits(connections=1_000, subscriptions=100_000, message_bytes=8 * 1024 * 1024)


@dataclass(frozen=True)
class SigningKeys:
    """Signing keys of one deployment."""

    folder: Path
    operator: Seed
    system: Seed
    services: Seed
    admin: Seed

    def tenant(self, name: str) -> Seed:
        """Signing key of a tenant's account, or of ADMIN. Raises: Fatal if the folder has none."""
        if name == ADMIN:
            return self.admin
        return _read_seed(_tenant_path(self.folder, name), f"tenant '{name}'")

    def new_tenant(self, name: str) -> Seed:
        """The tenant's signing key, created if missing. Raises: Fatal for an invalid tenant name."""
        path = _tenant_path(self.folder, name)
        if not path.exists():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_secret(path, Seed.new(Kind.ACCOUNT).reveal() + "\n")
        return self.tenant(name)

    def pending(self, tenant: str, key: str) -> Seed:
        """Seed of a key that is being made: the seed that an interrupted command left, or a new one, which is stored."""
        path = self._pending(tenant, key)
        if not path.exists():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_secret(path, Seed.new(Kind.USER).reveal() + "\n")
        return _read_seed(path, f"key '{key}'")

    def is_pending(self, tenant: str, key: str) -> bool:
        return self._pending(tenant, key).exists()

    def made(self, tenant: str, key: str) -> None:
        """Delete the pending seed of a key that is made: the key's holder has it."""
        self._pending(tenant, key).unlink(missing_ok=True)

    def _pending(self, tenant: str, key: str) -> Path:
        return self.folder / "pending" / f"{tenant}.{key}.seed"

    def forget_tenant(self, name: str) -> None:
        """Delete the key of a deleted tenant's account, and seeds of its keys that were being made."""
        for path in (self.folder / "pending").glob(f"{name}.*.seed"):
            path.unlink(missing_ok=True)
        _tenant_path(self.folder, name).unlink(missing_ok=True)

    def credentials(self, user: str) -> Path:
        """Path of the creds file of a service, or of SYSTEM."""
        return credentials_path(self.folder, user)


def credentials_path(folder: Path, user: str) -> Path:
    """Path of the creds file of a service, or of SYSTEM, in a folder of signing keys."""
    return folder / "creds" / f"{user}.creds"


def holds_keys(folder: Path) -> bool:
    """Whether `folder` has the operator's key, which is made last. False also if this user may not read the folder."""
    try:
        return (folder / f"{OPERATOR}.seed").exists()
    except PermissionError:
        return False


def open_or_make(folder: Path) -> SigningKeys:
    """The signing keys in `folder`; creates them if there are none.

    Raises: Fatal if others can read the folder, or only some of the keys exist.
    """
    if not folder.exists():
        folder.mkdir(mode=0o700, parents=True)
    refuse_readable_by_others(folder)
    names = {OPERATOR: Kind.OPERATOR, SYSTEM: Kind.ACCOUNT, SERVICES_ACCOUNT: Kind.ACCOUNT, ADMIN: Kind.ACCOUNT}
    # The operator's key is written last: without it nothing was signed, so an interrupted start begins from scratch.
    if not holds_keys(folder):
        if (folder / "tenants").exists():
            raise Fatal(
                f"{folder} has tenants' keys and no operator's; restore it from its backup: docs/tenancy.md, Lost or stolen signing keys"
            )
        for name in reversed(names):
            write_secret(folder / f"{name}.seed", Seed.new(names[name]).reveal() + "\n")
    return open_folder(folder)


def open_folder(folder: Path) -> SigningKeys:
    """The signing keys in `folder`. Raises: Fatal if the folder is incomplete, or others can read it."""
    if not holds_keys(folder):
        raise Fatal(f"{folder} is no folder of signing keys; `marlaas init` makes one")
    refuse_readable_by_others(folder)
    seeds = [_read_seed(folder / f"{name}.seed", name) for name in (OPERATOR, SYSTEM, SERVICES_ACCOUNT, ADMIN)]
    return SigningKeys(folder, *seeds)


def issue_service_keys(keys: SigningKeys, deployment: Deployment) -> None:
    """Write a creds file for each service, with its current permissions. Existing keys are kept, so that none has to be revoked."""
    (keys.folder / "creds").mkdir(mode=0o700, exist_ok=True)
    for name in SERVICES:
        issue_key(keys.credentials(name), keys.services, name, service_permissions(name, deployment))
    issue_key(keys.credentials(SYSTEM), keys.system, SYSTEM, SYSTEM_PERMISSIONS)


def server_configuration(keys: SigningKeys, resolver: Path | str) -> str:
    """Account section of nats-server's configuration. `resolver`: folder in which NATS keeps the tenants' tokens."""
    at_s = int(time.time())
    services = keys.services.public
    accounts = {
        keys.system.public: claims.system_token(keys.operator, keys.system.public, at_s),
        services: claims.services_token(keys.operator, services, at_s),
        keys.admin.public: claims.tenant_token(
            keys.operator, keys.admin.public, ADMIN, services, at_s, limits=ADMIN_LIMITS, revoked=admin_revocations(keys)
        ),
    }
    preloaded = "\n".join(f'  {account}: "{token}"' for account, token in accounts.items())
    return (
        "# Written by marlaas. Nothing in it is secret.\n"
        f"max_control_line: {MAX_CONTROL_LINE_BYTES}\n"
        f'operator: "{claims.operator_token(keys.operator, keys.system.public, at_s)}"\n'
        f'system_account: "{keys.system.public}"\n'
        f'resolver {{ type: full, dir: "{resolver}", allow_delete: true, interval: "2m" }}\n'
        f"resolver_preload {{\n{preloaded}\n}}\n"
    )


def admin_revocations(keys: SigningKeys) -> dict[str, int]:
    """Revoked keys of the account ADMIN: public key → Unix time. PostgreSQL has them too, but NATS starts before PostgreSQL."""
    path = keys.folder / "admin.revoked"
    lines = path.read_text().split() if path.exists() else []
    return {key: int(at_s) for key, _, at_s in (line.partition("=") for line in lines)}


def set_admin_revocations(keys: SigningKeys, revoked: dict[str, int]) -> None:
    write_secret(keys.folder / "admin.revoked", "".join(f"{key}={at_s}\n" for key, at_s in sorted(revoked.items())))


def issue_key(path: Path, account: Seed, name: str, allowed: Permissions) -> None:
    """Write the creds file of a user of the account. If the file exists, its key is kept."""
    found = SEED.search(path.read_text()) if path.exists() else None
    seed = Seed(found[1]) if found else Seed.new(Kind.USER)
    write_credentials(path, claims.user_token(account, seed.public, name, allowed, int(time.time())), seed)


def check_tenant_name(name: str) -> None:
    """Raises: Fatal if `name` cannot be a tenant's name."""
    if not re.fullmatch(NAME_PATTERN, name) or name == ADMIN:
        raise Fatal(f"'{name}' cannot be a tenant's name: lower-case letters, digits and '-', 40 at most, and not '{ADMIN}'")


def _tenant_path(folder: Path, name: str) -> Path:
    check_tenant_name(name)
    return folder / "tenants" / f"{name}.seed"


def _read_seed(path: Path, what: str) -> Seed:
    if not path.exists():
        raise Fatal(f"the folder of signing keys has none of {what}: {path} is missing; restore it from its backup")
    refuse_readable_by_others(path)
    return Seed(path.read_text())
