"""Settings: environment variables, read once at the start of a process, and nowhere else.

`MARLAAS_…` names apply to all services, `MARLAAS_<SERVICE>_…` to one. An unknown name or an invalid value stops the process
with one line. Values that differ per task are in the task's spec; values that never differ are named constants.
"""

import os
import socket
import sys
from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from common.errors import Fatal
from common.formats.wrong_values import reason_of
from common.resilience import crashpoints

SERVICES = ("SCHEDULER", "ENV", "ROLLOUT", "TRAINER", "GATEWAY")


class Settings(BaseSettings):
    """Settings of every service. A service adds its own in a subclass with its prefix."""

    model_config = SettingsConfigDict(env_prefix="MARLAAS_", extra="ignore", frozen=True, use_attribute_docstrings=True)
    service: ClassVar[str] = ""
    secrets: ClassVar[tuple[str, ...]] = ()
    """Fields that may contain a password or key: `<variable>_FILE` may name a file with the value instead. No error shows the value."""
    public_hosts: ClassVar[tuple[str, ...]] = ()
    """Fields with addresses at which users reach this service. If any is beyond loopback, the service needs a key for NATS."""
    declares_streams: ClassVar[bool] = False
    """Whether this service declares the streams; the others wait for them."""

    nats_url: str = "nats://127.0.0.1:4222"
    """Address of NATS, or comma-separated addresses of a cluster's nodes."""
    nats_creds: Path | None = None
    """File with this process's key, which no other user can read; absent if NATS requires none."""
    nats_insecure: bool = False
    """Whether a key may be used without TLS beyond loopback: only for networks reserved for this deployment's machines."""
    nats_ca: Path | None = None
    """File with the CA certificates for NATS's own certificate; absent: those of the system. With it, NATS is reached by TLS alone."""
    nats_cert: Path | None = None
    """File with this process's certificate, if NATS requests one."""
    nats_key: Path | None = None
    """File with the private key of `nats_cert`."""
    nats_replicas: int = Field(default=1, ge=1, le=5)
    """Copies of each stream in a NATS cluster; a stream that has more keeps them."""
    nats_blobs_bytes: int = Field(default=0, ge=0)
    """Maximum bytes of adapters, checkpoints and recorded batches in NATS, below its max_file_store, so that room is
    left for messages. 0: unchanged."""
    nats_streams_bytes: int = Field(default=2 * 1024**3, ge=0)
    """Total NATS stream size in bytes, split over the streams; publishers block while their stream is full. The sum with
    `nats_blobs_bytes` must be below NATS's max_file_store. 0: unchanged.
    """
    pools_file: Path = Path("pools.toml")
    data_dir: Path = Path(".marlaas")
    """Folder of caches that may be lost, such as fetched adapters."""
    accelerators_dir: Path = Path(".marlaas/accelerators")
    """Folder of the locks of shared accelerators: one for all samplers and trainers of this machine, and writable for them."""
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    http_host: str = "127.0.0.1"
    """Address of /metrics, /healthz and /readyz."""
    http_port: int = Field(default=0, ge=0, le=65_535)
    """0: any free port, written to the log."""
    replica: str = Field(default_factory=lambda: f"{socket.gethostname().split('.')[0]}-{os.getpid()}", pattern=r"^[A-Za-z0-9_-]+$")
    """This process's name, unique among its kind."""
    predecessor: str = ""
    """How the previous process ended, if its supervisor observed it; set only by `marlaas up`."""
    crash_point: str = Field(default="", pattern=crashpoints.SETTING)
    """Durability tests: <name>:<n> kills this process when it reaches that point for the n-th time."""

    @classmethod
    def read(cls) -> Self:
        """Read the settings from the environment. Raises: Fatal, naming the variable."""
        fields = {cls.variable(field): field for field in cls.model_fields}
        others = tuple(f"MARLAAS_{name}_" for name in SERVICES if name != cls.service)
        files = {f"{cls.variable(field)}_FILE": field for field in cls.secrets}
        for name in os.environ:
            if name.startswith("MARLAAS_") and name not in fields and name not in files and not name.startswith(others):
                raise Fatal(f"{name} is not a setting of this service; known: {', '.join(sorted(fields))}")
        in_files = {field: _secret(name, cls.variable(field)) for name, field in files.items() if os.environ.get(name)}
        own = {field: os.environ[name] for name, field in fields.items() if field not in Settings.model_fields and name in os.environ}
        try:
            return cls(**(own | in_files))  # pyright: ignore[reportArgumentType]  # strings, as in the environment
        except ValidationError as error:
            first = error.errors()[0]
            field = str(first["loc"][0]) if first["loc"] else "?"
            raise Fatal(f"{cls.variable(field)}: {reason_of(first, quoting=field not in cls.secrets)}") from None

    @classmethod
    def variable(cls, field: str) -> str:
        """Environment variable of `field`; a field that only this service has gets the service's prefix."""
        return f"MARLAAS_{'' if field in Settings.model_fields else cls.service + '_'}{field.upper()}"


def _secret(name: str, variable: str) -> str:
    """Content of the file named by the variable `name`. Raises: Fatal."""
    if variable in os.environ:
        raise Fatal(f"{name} and {variable} are both given; keep one of them")
    try:
        return Path(os.environ[name]).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is no text"
        raise Fatal(f"{name}: {os.environ[name]} cannot be read: {problem}") from None


def describe(settings: type[Settings]) -> str:
    """Every setting of a service, with its default and meaning, for `--help` and the documentation."""
    lines = []
    for name, field in settings.model_fields.items():
        default = "required" if field.is_required() else "" if field.default_factory else str(field.default)
        lines.append(f"{settings.variable(name)}={default}")
        note = f"Or {settings.variable(name)}_FILE, a file that holds it." if name in settings.secrets else ""
        if described := " ".join(f"{field.description or ''} {note}".split()):
            lines.append(f"    {described}")
    return "\n".join(lines)


def read_or_exit(settings: type[Settings]) -> Settings:
    """The settings, or a line on stderr and exit status 2."""
    try:
        return settings.read()
    except Fatal as error:
        print(f"{settings.service.lower() or 'marlaas'}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
