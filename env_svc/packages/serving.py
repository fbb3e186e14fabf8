"""Builds the service of tenants' packages from the settings, if this replica has one."""

import asyncio
import json
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import structlog

from common.blobs import Blobs
from common.bus import Bus
from common.errors import Fatal
from common.periodic import run_forever
from env_svc.hosted.confinement import Confinement, NotConfined
from env_svc.hosted.proxy import parsed_addresses
from env_svc.packages.check import PackageChecks
from env_svc.packages.hosts import OwnBounds, OwnHosts
from env_svc.packages.processes import TIMINGS, OwnSandboxes
from env_svc.packages.store import PackageStore
from env_svc.settings import EnvSettings

INSTALLED = """
import json, env_svc.hosted.host
from importlib.metadata import distributions
print(json.dumps(sorted({one.name for one in distributions() if one.name})))
"""
"""Program that prints the names of an interpreter's installed packages."""
PRINT_TIMEOUT_S = 60.0
IDLE_CHECK_S = 5.0

log = structlog.get_logger()


@dataclass(frozen=True)
class OwnService:
    """Hosts and checks of packages."""

    hosts: OwnHosts
    checks: PackageChecks


@asynccontextmanager
async def serving_own(settings: EnvSettings, bus: Bus, confinement: Confinement | None) -> AsyncGenerator[OwnService | None]:
    """The service; None without a sandbox. Raises: Fatal for settings that cannot be met."""
    addresses = parsed_addresses(settings.own_addresses)
    if confinement is None:
        yield None
        return
    installed = await _installed(settings, confinement)
    if installed is None:
        yield None
        return
    store = PackageStore(Blobs(bus), settings.data_dir / "packages")
    bounds = {
        "memory_mib": settings.own_memory_mib,
        "scratch_mib": settings.own_scratch_mib,
        "max_processes": settings.own_max_processes,
        "cores": settings.own_cores,
    }
    timings = replace(TIMINGS, start_timeout_s=settings.own_start_s)
    sandboxes = OwnSandboxes(store, confinement, settings.own_python, bounds, addresses, timings)
    most = settings.own_tenant_processes or settings.own_processes - 1
    hosts = OwnHosts(sandboxes, OwnBounds(settings.own_processes, min(most, settings.own_processes), settings.own_idle_s))
    listed = [name.strip() for name in settings.own_requires.split(",") if name.strip()] or installed
    await asyncio.to_thread(store.open)
    log.info("own_served", meaning=confinement.meaning, python=settings.own_python, tenants_with_addresses=sorted(addresses))
    stopping = asyncio.create_task(run_forever(hosts.stop_idle, min(IDLE_CHECK_S, settings.own_idle_s), "own_idle_check_failed"))
    try:
        yield OwnService(hosts, PackageChecks(store, hosts, listed))
    finally:
        stopping.cancel()
        await asyncio.shield(hosts.stop())
        await asyncio.to_thread(store.close)


async def _installed(settings: EnvSettings, confinement: Confinement) -> list[str] | None:
    """Names of the packages of MARLAAS_ENV_OWN_PYTHON; None if it cannot play environments here. Raises: Fatal if `own` is `required`."""
    try:
        await confinement.try_out(settings.own_python)
        process = await asyncio.create_subprocess_exec(settings.own_python, "-I", "-c", INSTALLED, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
        async with asyncio.timeout(PRINT_TIMEOUT_S):
            printed, errors = await process.communicate()
        if process.returncode != 0:
            raise NotConfined(errors.decode(errors="replace").strip().rpartition("\n")[2][-300:])
        return json.loads(printed)
    except (NotConfined, OSError, TimeoutError) as error:
        reason = f"MARLAAS_ENV_OWN_PYTHON: {settings.own_python} cannot play environments: {str(error) or 'it takes too long'}"
        if settings.own == "required":
            raise Fatal(reason) from None
        log.warning("own_not_served", reason=reason)
        return None
