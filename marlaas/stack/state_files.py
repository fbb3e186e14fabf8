"""Files in a one-machine stack's data directory.

    plan.json     what to run: ports, services, their environment       written by `up`, read by the supervisor
    stack.json    what runs: process ids, states, addresses             written by the supervisor, read by everyone
    lock          held by the supervisor while it lives
    keys/         signing keys, and the keys of services and of the operator: mode 0700 (common/access/folder.py)
    nats/ postgres/ secrets/ cache/ logs/<component>.log

A stack runs while its lock is held, regardless of the files: the kernel releases the lock when its holder dies, so a crash needs no
clean-up.
"""

import fcntl
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from common.access.services import Deployment
from marlaas.stack import servers
from marlaas.stack.os_processes import Identity, is_running

DEFAULT_DATA = Path(".marlaas")
MARK = "STACK_OF_MARLAAS"
"""Environment variable of every process of a stack; its value is the data directory. Not a MARLAAS_ name: those are settings."""

Condition = Literal["waiting", "starting", "ready", "done", "restarting", "faulty", "stopping", "stopped"]
GATEWAY_PORT, GATEWAY_HOST, GATEWAY_CERTIFICATE, GATEWAY_DRAIN = (
    f"MARLAAS_GATEWAY_{name}" for name in ("PORT", "HOST", "TLS_CERT", "DRAIN_S")
)
"""Settings of the gateway (gateway_svc/settings.py)."""
DRAIN_S = "10"
"""Seconds less than the supervisor's grace period: in a stack that is stopping, no other process can answer a chat."""
DASHBOARD = "/ui"
"""Path of the gateway's web pages."""
WILDCARDS = ("0.0.0.0", "::")


class StackError(Exception):
    """The stack cannot carry out the request; the text says what to do."""


class Service(BaseModel):
    """A service to run: the supervisor adds MARLAAS_HTTP_PORT and probes /readyz there."""

    model_config = ConfigDict(frozen=True)

    name: str
    argv: list[str]
    env: dict[str, str] = {}
    leaves: list[int] = []
    """Cores of shared CPUs, which other executors may hold: its process does not start on them, if it has others."""
    turn: int = 0
    """It starts once all services of lower turns are ready (`placement.Executor`)."""
    imports: list[str] = []
    """Modules that must be imported before it is forked (`preloading.py`); none: it is spawned."""


class Gateway(BaseModel):
    """HTTP address of the stack."""

    model_config = ConfigDict(frozen=True)

    port: int
    url: str
    """Address for a browser on this machine, without a trailing `/`."""


class StackPlan(BaseModel):
    """Input of a supervisor: ports, folders, commands."""

    model_config = ConfigDict(frozen=True)

    data: Path
    """Absolute path."""
    nats_port: int
    postgres_port: int
    gateway: Gateway
    pools_file: Path
    """Absolute path."""
    keys: Path | None = None
    """Absolute path of the folder of signing keys; None if NATS refuses no client."""
    families: list[str] = []
    """Families of environments, for the permissions of the environment service's key."""
    pools: list[str] = []
    sampler_queues: list[str] = []
    """As in Deployment, like `trainer_queues`."""
    trainer_queues: list[str] = []
    prepare: list[str]
    """Migrations, run once the servers are ready. Empty: none."""
    prepare_env: dict[str, str] = {}
    prepare_imports: list[str] = []
    """As in Service."""
    parents: list[list[str]] = []
    """Modules imported by each preloading process. It forks services whose imports are among them."""
    services: list[Service]

    @property
    def deployment(self) -> Deployment:
        """Names that determine the permissions of the services' keys."""
        names = (self.pools, self.families, self.sampler_queues, self.trainer_queues)
        return Deployment(*(tuple(each) for each in names))


class Component(BaseModel):
    """One process of the stack, as last seen by the supervisor."""

    name: str
    condition: Condition = "waiting"
    detail: str = ""
    """Reason of a restart or failure: the last line of its log."""
    process: Identity | None = None
    http_port: int | None = None
    since_s: float = 0.0
    """Unix time of the last change."""
    took_s: float | None = None
    """Seconds from its latest start until it was ready."""
    restarts: int = 0


class Stack(BaseModel):
    """The whole stack, as last seen by its supervisor."""

    supervisor: Identity
    nats_port: int
    postgres_port: int
    nats_url: str
    gateway: Gateway
    operator_key: Path | None = None
    """File with the key of this stack's user; None if NATS refuses no client."""
    database_url: str
    started_s: float
    components: list[Component]

    def component(self, name: str) -> Component:
        return next(component for component in self.components if component.name == name)

    @property
    def is_ready(self) -> bool:
        return all(component.condition in ("ready", "done") for component in self.components)

    @property
    def faulty(self) -> list[Component]:
        return [component for component in self.components if component.condition == "faulty"]


def log_path(data: Path, component: str) -> Path:
    return data / "logs" / f"{component}.log"


def read_stack(data: Path) -> Stack | None:
    """State of the running or last stack; None if there never was one."""
    try:
        return Stack.model_validate_json((data / "stack.json").read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        raise StackError(f"{data / 'stack.json'} is not readable by this version; remove it, and `marlaas up` writes a new one") from None
    except OSError as error:
        raise _unusable(data, error) from None


def read_plan(data: Path) -> StackPlan:
    """Plan of the running or last stack on `data`. Raises: FileNotFoundError if there never was one."""
    return StackPlan.model_validate_json((data / "plan.json").read_bytes())


def plan_pools_file(data: Path) -> Path | None:
    """Pools file of the running or last stack on `data`; None if there never was one."""
    return read_plan(data).pools_file if (data / "plan.json").exists() else None


def write_stack(data: Path, stack: Stack) -> None:
    """Replace the state atomically."""
    temporary = data / "stack.json.part"
    temporary.write_text(stack.model_dump_json(indent=2))
    temporary.replace(data / "stack.json")


def running_stack(data: Path) -> Stack:
    """State of the running stack on `data`. Raises: StackError if none runs."""
    stack = find_stack(data)
    if stack is None:
        raise StackError(f"no stack runs on {data}; start one with `marlaas up`, or name another with --data or --url")
    return stack


def find_stack(data: Path) -> Stack | None:
    """State of the running stack on `data`; None if none runs."""
    stack = read_stack(data) if is_locked(data) else None
    return stack if stack is not None and is_running(stack.supervisor) else None


def is_locked(data: Path) -> bool:
    """Whether a supervisor holds the lock."""
    try:
        with (data / "lock").open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError as error:
        raise _unusable(data, error) from None


def prepare_folder(data: Path) -> None:
    """Create the directory of a new stack, or make an existing one private: adapters, prompts and logs belong to all tenants.

    Raises: StackError if it is not writable, or a stack already runs there.
    """
    try:
        for folder in reversed((data / "logs", data, *data.parents)):
            folder.mkdir(mode=0o700, exist_ok=True)
        data.chmod(0o700)
    except OSError as error:
        raise _unusable(data, error) from None
    if is_locked(data):
        raise _already_running(data)


@contextmanager
def locked(data: Path) -> Generator[None]:
    """Lock the data directory for the block. Raises: StackError if another supervisor holds the lock."""
    file = os.open(data / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _already_running(data) from None
        yield
    finally:
        os.close(file)


def _unusable(data: Path, error: OSError) -> StackError:
    return StackError(f"{data} cannot be a stack's directory: {error.strerror}; name another with --data")


def _already_running(data: Path) -> StackError:
    return StackError(f"a stack runs on {data} already; `marlaas status` shows it, `marlaas down` stops it")


def gateway_env(address: Gateway) -> dict[str, str]:
    return {GATEWAY_PORT: str(address.port), GATEWAY_DRAIN: os.environ.get(GATEWAY_DRAIN, DRAIN_S)}


def gateway_at(port: int, settings: Mapping[str, str]) -> Gateway:
    """Address of the gateway on `port`. `settings`: its environment variables."""
    host = settings.get(GATEWAY_HOST, servers.HOST)
    shown = servers.HOST if host in WILDCARDS else host
    scheme = "https" if settings.get(GATEWAY_CERTIFICATE) else "http"
    return Gateway(port=port, url=f"{scheme}://{f'[{shown}]' if ':' in shown else shown}:{port}")


def dashboard_of(stack: Stack) -> str:
    """Address of the dashboard of a running stack. Raises: StackError if its gateway is not ready."""
    gateway = stack.component("gateway")
    if gateway.condition != "ready":
        raise StackError(f"the gateway is {gateway.condition}; next: marlaas status, then marlaas logs gateway")
    return f"{stack.gateway.url}{DASHBOARD}"
