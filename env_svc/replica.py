"""One replica of the environment service, built from its settings."""

import asyncio

from prometheus_client import Gauge

from common import streams
from common.blobs import Blobs
from common.bus import Bus, Slots
from common.leases import PoolClocks
from common.messages import FILE_FAMILY, OWN_FAMILY, ReplicaReport
from common.runtime.service import Running, report_replica
from common.task_states import TaskStates
from env_svc import registry
from env_svc.allowed import AllowedNames
from env_svc.datasets import ListedDatasets
from env_svc.execution.executor import EnvironmentExecutor
from env_svc.execution.tool_calls import ToolCallExecutor
from env_svc.execution.workers import Workers
from env_svc.files.environment import FileStore
from env_svc.hosted.config import read_hosted
from env_svc.hosted.confinement import choose_confinement, choose_own_confinement
from env_svc.hosted.pool import HostPool
from env_svc.packages.serving import OwnService, serving_own
from env_svc.sandboxes.current import start_sandbox, use
from env_svc.service import EnvService
from env_svc.settings import EnvSettings
from env_svc.tools.toolbox import Toolbox

WORKERS_BUSY = Gauge("marlaas_env_workers_busy", "Worker processes at work")
WORKERS_WAITING = Gauge("marlaas_env_jobs_waiting", "Jobs that wait for a worker process")
OWN_PROCESSES = Gauge("marlaas_env_own_processes", "Processes of tenants' packages, idle ones included")
OWN_WAITING = Gauge("marlaas_env_own_waiting", "Environments of tenants' packages that wait for a process")

MAX_CONCURRENT_CHECKS = 8
"""Maximum concurrent checks of environments, per family."""
MAX_CONCURRENT_PACKAGES = 32
"""Maximum concurrent checks of packages. Most wait for a process, in fair order."""


async def serve(running: Running[EnvSettings]) -> None:
    """Consume the queues of every family served, until cancelled."""
    settings, bus = running.settings, running.bus
    hosted = read_hosted(settings.hosts_file, registry.families())
    confinement = await choose_confinement(settings, hosted)
    hosts = HostPool(hosted, confinement=confinement)
    datasets = ListedDatasets(settings.datasets)
    async with serving_own(settings, bus, await choose_own_confinement(settings, confinement)) as own:
        await _serve(running, hosts, own, datasets)


async def _serve(running: Running[EnvSettings], hosts: HostPool, own: OwnService | None, datasets: ListedDatasets) -> None:
    settings, bus = running.settings, running.bus
    families = registry.served(settings.family_names, [*hosts.families, FILE_FAMILY, *([OWN_FAMILY] if own else [])])
    allowed = AllowedNames(settings.allowed, hosts.families, serves_own=own is not None)
    environments = await asyncio.to_thread(registry.list_environments, families)
    workers = Workers(settings.workers, families, memory_bytes=int(settings.worker_memory_gib * 2**30))
    _measure(workers, own)
    tasks, clocks, toolbox = TaskStates(), PoolClocks(bus), Toolbox()
    sandbox, files = await start_sandbox(settings), FileStore(Blobs(bus), settings.data_dir / "files")
    await asyncio.to_thread(files.open)
    use(sandbox)
    played = EnvironmentExecutor(workers, settings.call_timeout_s, hosts, own.hosts if own else None, files)
    executor = ToolCallExecutor(played, toolbox, allowed)
    service = EnvService(executor, tasks, clocks.now_s, allowed, datasets, own.hosts.end_task if own else lambda _: None)

    def report() -> ReplicaReport:
        busy = {"workers": float(workers.busy), "waiting": float(workers.waiting)}
        names = [*environments, *hosts.environments()]
        where = None if sandbox is None else f"{sandbox.name}: {sandbox.meaning}"
        return ReplicaReport(replica=settings.replica, service="env", families=families, environments=names, sandbox=where, busy=busy)

    try:
        await asyncio.gather(workers.start(), hosts.start())
        await tasks.read(bus)
        await clocks.read()
        async with asyncio.TaskGroup() as runners:
            runners.create_task(clocks.follow())
            runners.create_task(service.follow_tasks(bus))
            _consume(runners, bus, settings, families, service)
            if own is not None and OWN_FAMILY in families:
                runners.create_task(bus.consume(streams.env_packages(OWN_FAMILY), own.checks.check, Slots(MAX_CONCURRENT_PACKAGES)))
            runners.create_task(report_replica(bus, report))
            running.health.set_ready(f"serving {', '.join(families)}")
    finally:
        await asyncio.shield(asyncio.gather(workers.stop(), hosts.stop(), toolbox.close()))
        await asyncio.shield(asyncio.to_thread(files.close))
        if sandbox is not None:
            await asyncio.shield(sandbox.close())


def _consume(runners: asyncio.TaskGroup, bus: Bus, settings: EnvSettings, families: list[str], service: EnvService) -> None:
    for family in families:
        runners.create_task(bus.consume(streams.env_checks(family), service.check, Slots(MAX_CONCURRENT_CHECKS)))
        runners.create_task(bus.consume(streams.env_opens(family), service.open, Slots(settings.opens)))
        runners.create_task(bus.consume(streams.env_turns(family), service.turn, Slots(settings.turns)))


def _measure(workers: Workers, own: OwnService | None) -> None:
    WORKERS_BUSY.set_function(lambda: workers.busy)
    WORKERS_WAITING.set_function(lambda: workers.waiting)
    if own is not None:
        OWN_PROCESSES.set_function(lambda: own.hosts.processes)
        OWN_WAITING.set_function(lambda: own.hosts.waiting)
