"""Start and stop the one-machine stack: NATS, PostgreSQL and every service, as processes below one directory.

plan = make_plan(data, pools_file)          what to run
starting = start(plan)                      spawns the supervisor; `wait_until_ready` follows it
stop(data)                                  ends the supervisor, and processes left behind by a crash
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from common.access.folder import credentials_path
from common.access.services import Deployment
from common.pools import Accelerators, Pools, read_accelerators, read_pools
from marlaas.stack import database_folder, first_start, os_processes, placement, preloading, servers, state_files
from marlaas.stack.keys import folder_of, installed_families
from marlaas.stack.placement import Machine
from marlaas.stack.state_files import (
    MARK,
    Component,
    Gateway,
    Service,
    Stack,
    StackError,
    StackPlan,
    is_locked,
    log_path,
    prepare_folder,
    read_plan,
    read_stack,
)
from marlaas.stack.supervised_process import last_words, tail

START_TIMEOUT_S = 600.0
"""Maximum seconds until all components are ready: a first start may compile kernels; failures are reported earlier."""
STOP_TIMEOUT_S = 120.0
LEFTOVERS_GRACE_S = 15.0
LOG_LINES = 15


def make_plan(
    data: Path,
    pools_file: Path,
    *,
    nats_port: int | None = None,
    postgres_port: int | None = None,
    gateway_port: int | None = None,
    settings: Mapping[str, str] | None = None,
    keys: Path | None = None,
    without_keys: bool = False,
) -> StackPlan:
    """Plan of the whole stack for the pools in `pools_file`; default ports are those of the last run, or free ones.

    `settings`: environment variables of the services, which override the plan's. `keys`: folder of signing keys, created if missing;
    default: that of the last run, or `keys` in `data` (`keys.folder_of`). `without_keys`: NATS refuses no client.
    Raises: Fatal if the pools file is invalid; StackError if the streams belong to missing keys.
    """
    data = data.resolve()
    before = read_stack(data)
    keys = folder_of(data, given=keys.resolve() if keys else None, last=keys_of_last_run(data), without=without_keys)
    pools = read_pools(pools_file)
    accelerators = read_accelerators(pools_file, pools)
    nats_port = nats_port or (before.nats_port if before else servers.lasting_port())
    postgres_port = postgres_port or (before.postgres_port if before else servers.lasting_port())
    gateway_port = gateway_port or (before.gateway.port if before else servers.lasting_port())
    gateway = state_files.gateway_at(gateway_port, {**os.environ, **(settings or {})})
    database = {"MARLAAS_SCHEDULER_DATABASE_URL": _database_url(data, postgres_port, servers.APP)}
    owner = {
        "MARLAAS_SCHEDULER_DATABASE_OWNER_URL": _database_url(data, postgres_port, servers.OWNER),
        "MARLAAS_SCHEDULER_DATABASE_ADMIN_URL": _database_url(data, postgres_port, servers.ADMIN),
    }
    bounds = servers.bounds(data / "nats")
    common = {
        "MARLAAS_NATS_URL": servers.nats_url(nats_port),
        "MARLAAS_NATS_BLOBS_BYTES": str(bounds.blobs),
        "MARLAAS_NATS_STREAMS_BYTES": str(bounds.streams),
        "MARLAAS_POOLS_FILE": str(pools_file.resolve()),
    }
    queues, machine = Deployment.of(pools, ()), placement.this_machine()
    return StackPlan(
        data=data,
        nats_port=nats_port,
        postgres_port=postgres_port,
        gateway=gateway,
        pools_file=pools_file.resolve(),
        keys=keys,
        families=installed_families(_hosts_file()) if keys else [],
        pools=list(pools),
        sampler_queues=list(queues.sampler_queues),
        trainer_queues=list(queues.trainer_queues),
        prepare=[sys.executable, "-m", "scheduler_svc.migrate"],
        prepare_env={**(settings or {})} | common | database | owner | {"MARLAAS_DATA_DIR": str(data / "cache" / "migrations")},
        prepare_imports=list(preloading.MIGRATIONS),
        parents=preloading.parents(machine),
        services=[
            service.model_copy(update={"env": {**service.env, **_key_env(keys, service.name), **(settings or {})}})
            for service in [*_services(data, common, database, pools, accelerators, machine), _gateway(data, common, gateway)]
        ],
    )


def _database_url(data: Path, port: int, role: str) -> str:
    return servers.database_url(port, role=role, passfile=database_folder.passfile(data / "postgres"))


def keys_of_last_run(data: Path) -> Path | None:
    """Folder of signing keys of the last run on `data`; None if there was no run, or it had no keys."""
    return read_plan(data).keys if (data / "plan.json").exists() else None


def _hosts_file() -> Path | None:
    name = os.environ.get("MARLAAS_ENV_HOSTS_FILE")
    return Path(name) if name else None


def _key_env(keys: Path | None, service: str) -> dict[str, str]:
    """Setting with the service's key. `service`: its name in the stack, such as rollout-tiny."""
    return {"MARLAAS_NATS_CREDS": str(credentials_path(keys, service.partition("-")[0]))} if keys else {}


def _services(
    data: Path, common: dict[str, str], database: dict[str, str], pools: Pools, accelerators: Accelerators, machine: Machine
) -> list[Service]:
    found = [_service(data, "scheduler", "scheduler_svc", common | database), _service(data, "env", "env_svc", common | _env_env())]
    for each in placement.executors(data, pools, accelerators, machine):
        service = _service(data, each.name, f"{each.service}_svc", common | each.env)
        found.append(service.model_copy(update={"leaves": list(each.leaves), "turn": each.turn}))
    return found


def _gateway(data: Path, common: dict[str, str], gateway: Gateway) -> Service:
    return _service(data, "gateway", "gateway_svc", common | state_files.gateway_env(gateway))


def _service(data: Path, name: str, package: str, env: dict[str, str]) -> Service:
    own = {"MARLAAS_DATA_DIR": str(data / "cache" / name), "MARLAAS_REPLICA": name}
    return Service(name=name, argv=[sys.executable, "-m", package], env=env | own, imports=list(preloading.IMPORTS[package]))


def _env_env() -> dict[str, str]:
    """Default permissions on environments: the user of this stack may name any module and data set, tenants with keys only installed
    environments and their own packages. The user's environment variables override them.
    """
    defaults = {"MARLAAS_ENV_ALLOWED": "installed,_operator=*", "MARLAAS_ENV_DATASETS": "_operator=*", "MARLAAS_ENV_OWN": "auto"}
    return {name: os.environ.get(name, default) for name, default in defaults.items()}


@dataclass(frozen=True)
class Starting:
    """A stack whose supervisor has been spawned."""

    plan: StackPlan
    supervisor: subprocess.Popen[bytes]

    def look(self) -> Stack | None:
        """The state written by this supervisor; None if it has not written one yet."""
        stack = read_stack(self.plan.data)
        return stack if stack is not None and stack.supervisor.pid == self.supervisor.pid else None


def start(plan: StackPlan, *, end_with_parent: bool = False) -> Starting:
    """Spawn the supervisor, detached from this process, or ending with it.

    Raises: StackError if packages are missing, or the machine lacks what the pools file names; if a stack already runs there, a port is in
    use, or `data` is not writable or has no room.
    """
    data = plan.data
    if missing := first_start.missing_packages():
        raise StackError(first_start.sentence(missing))
    pools = read_pools(plan.pools_file)
    if lack := next(placement.objections(pools, read_accelerators(plan.pools_file, pools), placement.this_machine()), None):
        raise StackError(f"pools file {plan.pools_file} does not fit this machine: {lack} (all findings: marlaas doctor --machine)")
    prepare_folder(data)
    if objection := servers.room_objection(data / "nats"):
        raise StackError(objection)
    end_leftovers(data)
    _check_port(plan.nats_port, "NATS", "--nats-port")
    _check_port(plan.postgres_port, "PostgreSQL", "--postgres-port")
    _check_port(plan.gateway.port, "the gateway", "--gateway-port")
    (data / "plan.json").write_text(plan.model_dump_json(indent=2))
    with log_path(data, "supervisor").open("ab") as output:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "marlaas.supervisor", str(data)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, MARK: str(data), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},  # the driver's order, by which GPUs are assigned
            start_new_session=True,
            preexec_fn=os_processes.ends_with_parent(signal.SIGTERM) if end_with_parent else None,
        )
    return Starting(plan, supervisor)


def wait_until_ready(starting: Starting, report: Callable[[Stack], None], timeout_s: float = START_TIMEOUT_S) -> Stack:
    """Follow the start until every component is ready; `report` receives each intermediate state. Returns the running stack.

    Raises: StackError, with the last lines of the failing component's log; everything is stopped by then.
    """
    data = starting.plan.data
    deadline = time.monotonic() + timeout_s
    while True:
        if starting.supervisor.poll() is not None:
            raise StackError(f"the supervisor ended at its start: {last_words(log_path(data, 'supervisor'))}")
        stack = starting.look()
        if stack is not None:
            report(stack)
            if stack.is_ready:
                return stack
            if stack.faulty:
                text = failure(data, stack.faulty[0])
                stop(data)
                raise StackError(text)
        if time.monotonic() > deadline:
            late = [component.name for component in stack.components if component.condition != "ready"] if stack else ["supervisor"]
            stop(data)
            raise StackError(
                f"not ready after {timeout_s:.0f} s: {', '.join(late)}; see {data / 'logs'}; `marlaas up --start-timeout-s` allows more"
            )
        time.sleep(0.1)


def _check_port(port: int, what: str, option: str) -> None:
    if servers.is_listening(port):
        raise StackError(f"port {port}, which is for {what}, is in use by another program; end that, or choose another port with {option}")


def failure(data: Path, component: Component) -> str:
    """Message about a failing component, with its last log lines."""
    path = log_path(data, component.name)
    lines = "\n".join(f"  {line[:400]}" for line in tail(path, LOG_LINES))
    return f"{component.name} does not run: {component.detail}\n{lines}\nthe whole log: {path}"


def stop(data: Path, timeout_s: float = STOP_TIMEOUT_S) -> bool:
    """End the stack on `data`, services first; returns whether any process was running.

    Raises: StackError if the supervisor does not end.
    """
    data = data.resolve()
    if not is_locked(data):
        return bool(end_leftovers(data))
    deadline = time.monotonic() + timeout_s
    asked: os_processes.Identity | None = None
    while is_locked(data):
        stack = read_stack(data)  # read in each round: a new supervisor writes it a moment after its start
        if stack and stack.supervisor != asked and os_processes.is_running(stack.supervisor):
            asked = stack.supervisor
            os_processes.send(asked, signal.SIGTERM)
        if time.monotonic() > deadline:
            raise StackError(f"the supervisor does not end; see {log_path(data, 'supervisor')}")
        time.sleep(0.05)
    if asked:
        os_processes.end([asked], LEFTOVERS_GRACE_S)
    end_leftovers(data)
    return True


def end_leftovers(data: Path) -> list[os_processes.Identity]:
    """End processes that a killed supervisor left behind; returns them."""
    stack = read_stack(data)
    known = [component.process for component in stack.components if component.process] if stack else []
    marked = [process for process in os_processes.marked_with(MARK, str(data)) if process not in known]
    return os_processes.end([*known, *marked], LEFTOVERS_GRACE_S)
