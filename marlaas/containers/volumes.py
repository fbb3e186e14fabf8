"""The volumes of docker-compose.yml as the container `init` sees them, and files that are written for one reader."""

import os
from dataclasses import dataclass
from pathlib import Path

from marlaas.stack import servers

SERVICE_USER = 10_001
"""User of the services' images (Dockerfile)."""
NATS_USER = 65_532
"""User of the container `nats` (docker-compose.yml)."""
SERVICES = ("scheduler", "gateway", "env", "trainer", "rollout")
"""Services with a volume of their own for secrets; `migrate` has another."""
CREDS = "nats.creds"
PASSWORDS = "pgpass"


@dataclass(frozen=True)
class Volumes:
    """Folders below `root`, one for each volume."""

    root: Path
    service_user: int = SERVICE_USER
    nats_user: int = NATS_USER

    @property
    def keys(self) -> Path:
        """Signing keys. `init`, `accounts` and `marlaas` have this volume, and no service."""
        return self.root / "keys"

    @property
    def creds(self) -> Path:
        """Tenants' keys, until they are copied out."""
        return self.root / "creds"

    @property
    def nats(self) -> Path:
        """Folder with NATS's store in `jetstream`, as `marlaas.stack.keys` expects one."""
        return self.root / "nats"

    @property
    def nats_store(self) -> Path:
        return self.nats / servers.STORE

    @property
    def nats_access(self) -> Path:
        """The part of NATS's configuration about accounts."""
        return self.root / "nats-access"

    @property
    def postgres_access(self) -> Path:
        """The statement that gives PostgreSQL's superuser its password."""
        return self.root / "postgres-access"

    def secrets(self, service: str) -> Path:
        return self.root / "secrets" / service

    @property
    def passwords(self) -> Path:
        """Password file of libpq with every role's."""
        return self.secrets("migrate") / PASSWORDS


def publish(path: Path, text: str, user: int, *, mode: int = 0o600) -> None:
    """Write a file for one user. It is complete and that user's before it has its name, so a running service never finds another."""
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
    """Give a folder with all that is in it to a user, and close it to others."""
    folder.chmod(0o700)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user, follow_symlinks=False)
