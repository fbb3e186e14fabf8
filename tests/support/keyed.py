"""A real nats-server that wants keys, with the accounts of two tenants."""

import subprocess
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.harness.keys import EVERYTHING, measuring_key
from common.access.claims import EVERYONE, AccountLimits, tenant_token, tenant_user_token, user_token
from common.access.credentials import write_credentials
from common.access.folder import SYSTEM, SigningKeys, issue_key, issue_service_keys, open_or_make, server_configuration
from common.access.keys import Kind, Seed, decode, encode
from common.access.roles import Role
from common.access.rows import Permissions
from common.access.services import Deployment
from common.bus import Bus
from marlaas.stack import servers
from marlaas.stack.keys import installed_families
from marlaas.stack.servers import Command
from tests.support.buses import HASTY
from tests.support.servers import running
from tests.support.spying import refusals

OWN_QUEUES = ("tiny@a", "tiny@b")
DEPLOYMENT = Deployment(("tiny",), ("math", "module", "own"), sampler_queues=OWN_QUEUES, trainer_queues=OWN_QUEUES)
WITH_INSTALLED = replace(DEPLOYMENT, families=(*installed_families(None), "game"))
"""Of tests that start an environment service, and "game", which they install."""
TRACE = "\ntrace: true\nmax_traced_msg_len: 16\n"
TENANTS = ("acme", "globex")


@dataclass
class Keyed:
    """The server, and the operator's side of it."""

    url: str
    keys: SigningKeys
    port: int
    command: Command
    process: subprocess.Popen[bytes]
    log: Path
    revoked: dict[str, dict[str, int]] = field(default_factory=dict)

    async def connect(self, user: str, **options: object) -> Bus:
        """A service, or a tenant's key that `key` has made."""
        path = self.keys.credentials(user)
        return await Bus.connect(self.url, user, creds=path, timings=HASTY, **options)  # type: ignore[arg-type]

    def key(self, tenant: str, role: Role, *, end_s: int = 0) -> Path:
        """A new key's creds file."""
        return tenants_key(self.keys, tenant, role, end_s=end_s)

    def stages_key(self) -> Path:
        """A key for test doubles, which are every service in one process."""
        return measuring_key(self.keys.folder)

    async def push(self, tenant: str, limits: AccountLimits = AccountLimits()) -> None:  # noqa: B008  frozen
        """Tell NATS of the tenant's account, as it is now."""
        account, revoked = self.keys.new_tenant(tenant).public, self.revoked.get(tenant, {})
        services, at_s = self.keys.services.public, int(time.time())
        token = tenant_token(self.keys.operator, account, tenant, services, at_s, limits=limits, revoked=revoked)
        async with await self.connect(SYSTEM) as system:
            await system.accounts.push(token)

    async def revoke(self, tenant: str, key: str = EVERYONE) -> None:
        self.revoked.setdefault(tenant, {})[key] = int(time.time())
        await self.push(tenant)


def tenants_key(keys: SigningKeys, tenant: str, role: Role, *, end_s: int = 0) -> Path:
    """A new key's creds file."""
    seed, path = Seed.new(Kind.USER), keys.folder / "creds" / f"{tenant}-{role}-{time.monotonic_ns()}.creds"
    token = tenant_user_token(keys.tenant(tenant), seed.public, path.stem, tenant, role, int(time.time()), end_s)
    write_credentials(path, token, seed)
    return path


def _bearer(keys: SigningKeys) -> str:
    """A token of the services' account that needs no signature."""
    claims = decode(user_token(keys.services, Seed.new(Kind.USER).public, "tests", EVERYTHING, int(time.time())))
    return encode(keys.services, claims | {"nats": claims["nats"] | {"bearer_token": True}})


def services_key(keys: SigningKeys, name: str, allowed: Permissions) -> Path:
    """Creds file of a user of the services' account."""
    path = keys.credentials(name)
    issue_key(path, keys.services, name, allowed)
    return path


@asynccontextmanager
async def keyed_server(
    folder: Path,
    *,
    sync: str = "1s",
    traced: bool = False,
    refuses: bool = False,
    open_to_tests: bool = False,
    deployment: Deployment = DEPLOYMENT,
) -> AsyncGenerator[Keyed]:
    """Fails at its end where it has refused something to a service, unless it `refuses` on purpose.

    `traced`: whether its log has all that is published, for `tests/support/spying.py`. `open_to_tests`: whether a connection without
    a key may do everything, as test doubles do; a service with its key may do what that permits.
    """
    keys = open_or_make(folder / "keys")
    issue_service_keys(keys, deployment)
    port = servers.free_port()
    accounts = server_configuration(keys, folder / "nats" / "accounts") + (TRACE if traced else "")
    accounts += f'default_sentinel: "{_bearer(keys)}"\n' if open_to_tests else ""
    command = servers.nats_command(folder / "nats", port, sync=sync, accounts=accounts)
    with running(command, port, folder / "nats.log") as process:
        server = Keyed(servers.nats_url(port), keys, port, command, process, folder / "nats.log")
        for tenant in TENANTS:
            await server.push(tenant)
        async with await server.connect("scheduler") as scheduler:
            await scheduler.declare()
            await scheduler.own_jobs.declare(TENANTS)
        yield server
    assert refuses or refusals(server.log) == []
