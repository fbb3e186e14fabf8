"""Settings of the environment service: `MARLAAS_ENV_…`."""

import os
import sys
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from common.runtime.settings import Settings


class EnvSettings(Settings):
    service: ClassVar[str] = "ENV"

    families: str = ""
    """Environment families to serve, separated by commas; empty: all that are installed, `module`, and `own` as MARLAAS_ENV_OWN says."""
    allowed: str = "installed"
    """Names that tasks may give for environments and tools, separated by commas: `installed` (every installed, built-in or hosted one),
    patterns such as `my_games.*:*`, and `acme=my_games.*:*` for tenant acme alone. `*` lets a task import any module, and
    `_operator=*` one of the operator; `marlaas up` adds that if the variable is absent."""
    workers: int = Field(default_factory=lambda: max(2, os.cpu_count() or 1), ge=1, le=1024)
    """Processes for environments that compute. With n of them, one task holds at most n - 1; tenants share them by weight."""
    worker_memory_gib: float = Field(default=4.0, ge=0.5)
    """Maximum address space of one worker process, in GiB; an environment that exceeds it gets an error."""
    call_timeout_s: float = Field(default=60.0, gt=0)
    """Maximum seconds for opening an episode or playing one turn."""
    hosts_file: Path | None = None
    """TOML file of environments that run in processes and virtual environments of their own: docs/environments.md."""
    hosts_sandbox: Literal["auto", "required", "none"] = "auto"
    """Sandbox of these environments' processes. `auto`: if this machine has one (the program bwrap, with root or user namespaces);
    otherwise they run with the service's rights, with a warning. `required`: the replica does not start without one. `none`: no sandbox."""
    hosts_cgroup: Path | None = None
    """Control group (version 2) whose controllers cpu, memory and pids are enabled for its children, such as one that systemd delegates:
    below it each process of MARLAAS_ENV_HOSTS_FILE is bounded as a whole. Absent: the service's own group, if it may make others in it."""
    own: Literal["none", "auto", "required"] = "none"
    """Whether packages that tenants upload are played here (environments `own:…`), each process in a sandbox. `auto`: if this machine
    has one (as MARLAAS_ENV_HOSTS_SANDBOX), otherwise the log says why not; `marlaas up` sets it if the variable is absent. `required`:
    the replica does not start without one."""
    own_python: str = Field(default_factory=lambda: sys.executable)
    """Interpreter for packages of tenants, with `marlaas` and the packages that they may need; default: the service's own."""
    own_requires: str = ""
    """Names of packages that a tenant's package may need, separated by commas; empty: all installed for MARLAAS_ENV_OWN_PYTHON."""
    own_processes: int = Field(default_factory=lambda: 2 * max(2, os.cpu_count() or 1), ge=2, le=256)
    """Maximum concurrent processes of tenants' packages; tenants share them by weight."""
    own_tenant_processes: int = Field(default=0, ge=0)
    """Maximum concurrent processes of one tenant's packages; 0: one less than MARLAAS_ENV_OWN_PROCESSES."""
    own_memory_mib: int = Field(default=1024, ge=128)
    """Maximum memory, in MiB, of a process of a tenant's package; with the processes that it starts, if the service may make control
    groups."""
    own_scratch_mib: int = Field(default=64, ge=1)
    """Size in MiB of /tmp for a process of a tenant's package; it is kept in memory and ends with the process."""
    own_max_processes: int = Field(default=64, ge=8)
    """Maximum processes and threads in the sandbox of a tenant's package."""
    own_cores: float = Field(default=1.0, ge=0.1)
    """Maximum CPU seconds per second of a process of a tenant's package, if the service may make control groups."""
    own_start_s: float = Field(default=30.0, gt=0)
    """Maximum seconds until a process of a tenant's package is ready: its interpreter has started and the package is imported."""
    own_idle_s: float = Field(default=300.0, gt=0)
    """Seconds without a call after which a process of a tenant's package ends. It also ends with the last task that has used it."""
    own_addresses: str = ""
    """Addresses that tenants' packages may reach through a proxy, separated by commas: `acme=api.example.org:443`. A name leads
    only to public addresses; any other address is listed as an IP, `acme=10.0.0.7:8000`. The packages have no other network."""
    data: Path = Path("data")
    """Folder with files that tasks may name, such as math problems. Tasks can name no file outside the folder."""
    datasets: str = ""
    """Data sets of Hugging Face that tasks may name, separated by commas, each with its revision, such as `openai/gsm8k@e53f048856ff`.
    Copies below MARLAAS_ENV_DATA need no entry. `*`: any, at its newest revision. `acme=…` for tenant acme alone, `_operator=…` for tasks
    of the operator: `marlaas up` sets `_operator=*` if the variable is absent."""
    opens: int = Field(default=256, ge=1)
    """Groups opened concurrently, per family."""
    turns: int = Field(default=2048, ge=1)
    """Messages with turns played concurrently, per family."""
    tool_servers: Path = Path("tool-servers.toml")
    """File with the MCP servers whose tools tasks may name; see docs/environments.md. It need not exist."""
    sandbox: Literal["auto", "bubblewrap", "docker", "confined", "monty", "none"] = "auto"
    """Sandbox of code that a policy wrote. `bubblewrap`: CPython, needs the program bwrap; `docker`: CPython in a container;
    `confined`: CPython that the kernel confines, needs nothing; `monty`: an interpreter of a part of Python; `none`: tasks that need
    one are refused. `auto`: the first of those that works here, Docker only if MARLAAS_ENV_DOCKER_URL names an engine."""
    sandbox_runs: int = Field(default_factory=lambda: 2 * max(2, os.cpu_count() or 1), ge=1, le=4096)
    """Maximum concurrent runs in the sandbox; others wait."""
    docker_url: str = ""
    """URL of the engine, for the sandbox `docker`, which needs it; empty: `auto` skips Docker. Access to an engine is root on its host:
    prefer a rootless one, or a socket proxy."""
    sandbox_image: str = "python:3.11-slim"
    """Image with `python3` and `env`, for the sandbox `docker`; it is not pulled."""
    sandbox_warm: int = Field(default=4, ge=0, le=256)
    """Warm containers that wait for code, for the sandbox `docker`."""

    @property
    def family_names(self) -> list[str]:
        return [name.strip() for name in self.families.split(",") if name.strip()]
