"""Stacks as child processes: whole ones, or all services but sampler and trainer, for benchmarks with stand-ins for these."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from urllib.error import URLError

import psutil

from bench.harness import part
from bench.harness.keys import measuring_key
from bench.harness.load.standins import CONTEXT_TOKENS, POOL
from bench.harness.measures import usage
from bench.harness.report import ROOT
from common.access.folder import credentials_path
from common.access.services import Deployment
from marlaas.stack import control, database_folder, servers
from marlaas.stack.keys import prepared
from marlaas.stack.servers import Command
from marlaas.stack.state_files import Stack, StackError, StackPlan

READY_S = 120.0
STOP_S = 30.0
_numbers = count()


class BenchError(Exception):
    """The benchmark cannot run, or its result is invalid; the text says why."""


def run_or_exit(name: str, main: Callable[[], None]) -> None:
    """Run the benchmark; a BenchError ends the process with its text."""
    try:
        main()
    except BenchError as error:
        sys.exit(f"{name}: {error}")


@dataclass(frozen=True)
class Services:
    """Running services and their addresses."""

    nats_url: str
    keys: Path
    """Folder of the signing keys."""
    postgres_port: int
    database: str
    processes: dict[str, psutil.Process]

    @cached_property
    def creds(self) -> Path:
        """Of what is beside the services (`bench/harness/keys.py`)."""
        return measuring_key(self.keys)

    @property
    def postgres_url(self) -> str:
        """The database's address for psycopg, and the owner of the schema."""
        return servers.database_url(self.postgres_port, self.database, role=servers.OWNER).replace("+psycopg", "")

    def cpu_s(self) -> dict[str, float]:
        """Processor seconds of each so far, live children included."""
        return {name: sum(usage.cpu_s(one) for one in usage.family(process)) for name, process in self.processes.items()}

    def memory_bytes(self) -> dict[str, int]:
        """Proportional set size of each, children included."""
        return {name: sum(usage.pss_bytes(one) for one in usage.family(process)) for name, process in self.processes.items()}


@contextmanager
def postgres(*options: str) -> Generator[tuple[Path, tuple[int, psutil.Process]]]:
    """A PostgreSQL server with command-line `options`, in a folder of its own; yields the folder, and the server's port and process."""
    port = servers.free_port()
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL runs as another user than root
        command = servers.postgres_command(folder / "postgres", port)
        with (
            _passwords(database_folder.passfile(folder / "postgres")),
            _running(Command(command.name, [*command.argv, *options], stop_signal=command.stop_signal), folder) as process,
        ):
            servers.wait_until_listening(port, process, "postgres")
            yield folder, (port, psutil.Process(process.pid))


@contextmanager
def _passwords(passfile: Path) -> Generator[None]:
    """libpq takes passwords from there, in child processes too."""
    before = os.environ.get("PGPASSFILE")
    os.environ["PGPASSFILE"] = str(passfile)
    try:
        yield
    finally:
        del os.environ["PGPASSFILE"]
        if before is not None:
            os.environ["PGPASSFILE"] = before


@contextmanager
def nats(folder: Path) -> Generator[str]:
    """A server without keys, for programs that are several services in one process and measure none of NATS; yields its address."""
    port = servers.free_port()
    with _running(servers.nats_command(folder / "nats", port), folder) as process:
        servers.wait_until_listening(port, process, "nats")
        yield servers.nats_url(port)


@contextmanager
def local_stack(
    pools: Path = ROOT / "pools.toml",
    settings: Mapping[str, str] | None = None,
    *,
    samplers: int = 1,
    changed: Callable[[StackPlan], StackPlan] = lambda plan: plan,
    cores: Collection[int] = (),
) -> Generator[Stack]:
    """The running stack, with `samplers` rollout replicas a pool, until the block ends.

    `changed`: the plan that is started. `cores`: those of this process and of all that do not choose their own; empty: all.
    Raises: BenchError when it does not start.
    """
    available = os.sched_getaffinity(0)
    part.end_in_order()
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
        data = Path(folder)
        try:
            plan = control.make_plan(data, pools, settings=settings)
            plan = changed(_with_samplers(plan, samplers))
            with part.phase("start"):
                starting = control.start(plan, end_with_parent=True)  # with all cores: it refuses accelerators that are on others
                for process in (starting.supervisor.pid, 0):
                    os.sched_setaffinity(process, cores or available)
                stack = control.wait_until_ready(starting, lambda _: None)
            with part.phase("measured"):
                yield stack
        except StackError as error:
            raise BenchError(str(error)) from None
        finally:
            part.keep_logs(data / "logs")
            with part.phase("stop"):
                control.stop(data)
            os.sched_setaffinity(0, available)


def _with_samplers(plan: StackPlan, samplers: int) -> StackPlan:
    more = [
        service.model_copy(update={"name": (name := f"{service.name}-{number}"), "env": service.env | _own(plan.data, name)})
        for service in plan.services
        if "rollout_svc" in service.argv
        for number in range(2, samplers + 1)
    ]
    return plan.model_copy(update={"services": [*plan.services, *more]})


def _own(data: Path, name: str) -> dict[str, str]:
    return {"MARLAAS_DATA_DIR": str(data / "cache" / name), "MARLAAS_REPLICA": name}


@contextmanager
def services(folder: Path, postgres: tuple[int, psutil.Process], places: int, settings: Mapping[str, str]) -> Generator[Services]:
    """Everything but sampler and trainer, on streams and a database of its own; `settings` are environment variables.

    Each service has its key; what stands in for the others has one for everything.
    """
    number = next(_numbers)
    folder = folder / str(number)
    folder.mkdir(parents=True)
    nats_port, (postgres_port, postgres_process) = servers.free_port(), postgres
    database = f"bench_{number}"
    servers.create_database(postgres_port, database)
    pools = folder / "pools.toml"
    pools.write_text(f'[{POOL}]\nmodel = "{ROOT / "models/tiny"}"\ncontext_tokens = {CONTEXT_TOKENS}\nsequences = {places}\n')
    addresses = {
        name: servers.database_url(postgres_port, database, role=role, passfile=Path(os.environ["PGPASSFILE"]))
        for name, role in (("URL", servers.APP), ("OWNER_URL", servers.OWNER), ("ADMIN_URL", servers.ADMIN))
    }
    common = {
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
        "MARLAAS_NATS_URL": servers.nats_url(nats_port),
        "MARLAAS_POOLS_FILE": str(pools),
        "MARLAAS_DATA_DIR": str(folder),
        "MARLAAS_LOG_LEVEL": "warning",
    }
    scheduler_env = common | {f"MARLAAS_SCHEDULER_DATABASE_{name}": address for name, address in addresses.items()}
    subprocess.run([sys.executable, "-m", "scheduler_svc.migrate"], env=_inherited() | scheduler_env, check=True, cwd=ROOT)
    keys = folder / "keys"
    accounts = prepared(keys, folder / "nats", Deployment((POOL,), ("module",)))
    with _running(servers.nats_command(folder / "nats", nats_port, accounts=accounts), folder) as nats:
        servers.wait_until_listening(nats_port, nats, "nats")
        own = {name: value for name, value in settings.items() if name.startswith("MARLAAS_SCHEDULER_")}
        env = {"MARLAAS_ENV_FAMILIES": "module", "MARLAAS_ENV_ALLOWED": "bench.*:*", "MARLAAS_ENV_WORKERS": "1"} | {
            name: value for name, value in settings.items() if name.startswith("MARLAAS_ENV_")
        }
        with (
            _service("scheduler_svc", scheduler_env | own | _creds(keys, "scheduler"), folder) as scheduler,
            _service("env_svc", common | env | _creds(keys, "env"), folder) as environment,
        ):
            processes = {"nats": psutil.Process(nats.pid), "postgres": postgres_process, "scheduler": scheduler, "env": environment}
            yield Services(servers.nats_url(nats_port), keys, postgres_port, database, processes)


def _creds(keys: Path, service: str) -> dict[str, str]:
    return {"MARLAAS_NATS_CREDS": str(credentials_path(keys, service))}


@contextmanager
def _service(package: str, env: dict[str, str], folder: Path) -> Generator[psutil.Process]:
    port = servers.free_port()
    command = Command(package, [sys.executable, "-m", package], env | {"MARLAAS_HTTP_PORT": str(port)})
    with _running(command, folder) as process:
        deadline = time.monotonic() + READY_S
        while not _is_ready(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"{package} does not become ready: {(folder / f'{package}.log').read_text()[-2000:]}")
            time.sleep(0.05)
        yield psutil.Process(process.pid)


def _inherited() -> dict[str, str]:
    """The environment variables, without those of another stack."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MARLAAS_")}


@contextmanager
def _running(command: Command, folder: Path) -> Generator[subprocess.Popen[bytes]]:
    with (folder / f"{command.name}.log").open("ab") as log:
        process = subprocess.Popen(command.argv, stdout=log, stderr=log, env=_inherited() | command.env, cwd=ROOT)
    try:
        yield process
    finally:
        process.send_signal(command.stop_signal or signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1) as answer:
            return answer.status == 200
    except (URLError, OSError):
        return False
