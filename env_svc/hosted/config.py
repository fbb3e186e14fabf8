"""Configuration of hosted environments: the file that `MARLAAS_ENV_HOSTS_FILE` names.

[my_game]                                   # its name in tasks, and its family
python = "/opt/my_game/bin/python"          # of a virtual environment that has `marlaas` and the environment
environment = "my_game.environment:MyGame"
processes = 2
options = { server = "ws://10.0.0.7:8000" } # given to every task's environment; a task cannot change them
variables = { OMP_NUM_THREADS = "1" }
network = true                              # otherwise none
read = ["/srv/rows"]                        # paths that it sees besides its interpreter and packages
"""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, TypeAdapter

from common.errors import Fatal
from common.formats.toml_file import TomlFileError, read_tables
from common.messages import OWN_FAMILY
from env_svc.hosted.wire import MAX_FRAME_BYTES
from env_svc.registry import FAMILY_PATTERN, MODULE_FAMILY

PACKAGE = "/package"
"""Folder of a tenant's package in its sandbox."""
PROXY = "/proxy"
"""Socket of the proxy in its sandbox."""
MIB = 2**20


def _is_absolute(path: Path) -> Path:
    if not path.is_absolute() or ".." in path.parts or path == Path("/"):
        raise ValueError(f"'{path}' is no absolute path below / without '..'")
    return path


AbsolutePath = Annotated[Path, AfterValidator(_is_absolute)]


class HostedConfig(BaseModel):
    """One environment, and its processes and options."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    python: str
    environment: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*$")
    processes: int = Field(default=1, ge=1, le=256)
    options: dict[str, JsonValue] = {}
    variables: dict[str, str] = {}
    sandbox: bool = True
    """False: its processes run outside the sandbox, with the rights of the service's user."""
    network: bool = False
    """True: the machine's network, loopback included. False: none."""
    read: list[AbsolutePath] = []
    write: list[AbsolutePath] = []
    """Paths that the sandbox shows at the same place, writable. Files written there stay."""
    user: int | None = Field(default=None, ge=1)
    """User id of its processes if the service is root, so that they may write files of this user; default: a unique id per process."""
    memory_mib: int = Field(default=4096, ge=64)
    """Maximum memory of each process, in MiB, and of all together if the service may make control groups."""
    scratch_mib: int = Field(default=256, ge=1)
    """Size of /tmp, in MiB; it is kept in memory and ends with the process."""
    max_processes: int = Field(default=256, ge=8)
    """Maximum processes and threads in the sandbox of one process."""
    cores: float = Field(default=1.0, ge=0.1)
    """CPU cores, as a number of CPU seconds per second; enforced if the service may create control groups."""

    @property
    def arguments(self) -> list[str]:
        """Arguments of `env_svc.hosted.host`."""
        return [self.environment]

    @property
    def mounted(self) -> dict[str, str]:
        """Read-only paths of this machine that the sandbox shows at another place: path → place."""
        return {}

    @property
    def is_logged(self) -> bool:
        """Whether the text that its processes print is logged. False: it is discarded."""
        return True

    @property
    def is_kept(self) -> bool:
        """Whether a process that died is restarted immediately. False: it is restarted at its next call."""
        return True

    @property
    def max_frame_bytes(self) -> int:
        """Maximum size of a frame from its process."""
        return MAX_FRAME_BYTES


class PackageConfig(HostedConfig):
    """An environment of a package that a tenant has uploaded. It never comes from the operator's file."""

    package: Path
    """Folder with the files of its wheel."""
    proxy: Path | None = None
    """UNIX socket of the proxy to the tenant's addresses; None if the operator lists none."""

    @property
    def arguments(self) -> list[str]:
        return [self.environment, "--package", PACKAGE, *(("--proxy", PROXY) if self.proxy else ())]

    @property
    def mounted(self) -> dict[str, str]:
        return {str(self.package): PACKAGE} | ({str(self.proxy): PROXY} if self.proxy else {})

    @property
    def is_logged(self) -> bool:
        return False

    @property
    def is_kept(self) -> bool:
        return False

    @property
    def max_frame_bytes(self) -> int:
        return 2 * MIB


def read_hosted(file: Path | None, installed: list[str]) -> dict[str, HostedConfig]:
    """The environments in `file` by name; none without a file. Raises: Fatal, naming what is wrong."""
    if file is None:
        return {}
    try:
        found = read_tables(file, TypeAdapter(dict[str, HostedConfig]))
    except TomlFileError as error:
        raise Fatal(f"MARLAAS_ENV_HOSTS_FILE: {file} {error}") from None
    for name in found:
        if name in (*installed, MODULE_FAMILY, OWN_FAMILY) or not FAMILY_PATTERN.match(name):
            rule = "use letters, digits, - and _, and no name that is installed here too"
            raise Fatal(f"MARLAAS_ENV_HOSTS_FILE: {file}: '{name}' cannot be the name of an environment: {rule}")
    return found
