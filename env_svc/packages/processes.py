"""One environment of a tenant's package: its name, `own:<environment>[@<digest>]`, its process, and the calls to it.

A process has its package's folder, a sandbox and, if the tenant may reach addresses, a proxy.
"""

import asyncio
import re
import time
from collections.abc import Generator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from common.fairness.fair_queue import Claimant
from common.fairness.fair_slots import FairSlots
from common.messages import OWN_FAMILY, BlobRef, own_name, wheel_name
from common.resilience.backoff import Backoff
from common.spec.sections import OWN_PATTERN
from env_svc.errors import WrongOptions
from env_svc.hosted.config import PackageConfig
from env_svc.hosted.confinement import Confinement
from env_svc.hosted.process import HostProcess, HostTimings
from env_svc.hosted.proxy import Address, Proxy
from env_svc.hosted.wire import Hello
from env_svc.packages.store import PackageStore

NAME = re.compile(rf"^{OWN_PATTERN}$")


TIMINGS = HostTimings(start_timeout_s=30.0, grace_s=1.0, poll_interval_s=0.2, restart=Backoff(0.5, 5.0))
"""Timings, shorter than for the operator's hosts: a process that starts holds a place that others wait for."""


VARIABLES = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Variables that limit threads: libraries reserve address space for each one."""


MAX_CONCURRENT_CALLS = 64
"""Maximum concurrent calls of a process if its environment does not compute; an environment that computes gets one call at a time."""


@dataclass(frozen=True)
class OwnEnvironmentKey:
    """One environment of one package of one tenant. Only calls with equal keys share a process."""

    tenant: str
    package: str
    """SHA-256 of its wheel."""
    environment: str

    @property
    def name(self) -> str:
        return own_name(self.environment)


def key_of(tenant: str, name: str, wheel: BlobRef | None) -> OwnEnvironmentKey:
    """Environment named by a task of `tenant`. Raises: WrongOptions, also for a wheel that is not this tenant's: messages can be forged."""
    found = NAME.match(name)
    if found is None:
        raise WrongOptions(f"'{name:.100}' names no environment of a package: expected {OWN_FAMILY}:<environment>[@<digest>]")
    if wheel is None:
        raise WrongOptions(f"environment '{name:.100}' comes without its package: upload one that has it")
    if wheel.name != wheel_name(tenant, wheel.sha256) or not wheel.sha256.startswith(found["digest"] or ""):
        raise WrongOptions(f"environment '{name:.100}': {wheel.name} is no such package of tenant {tenant}")
    return OwnEnvironmentKey(tenant, wheel.sha256, found["environment"])


@dataclass(frozen=True)
class OwnProcess:
    """A started process, with its sandbox, proxy and package."""

    host: HostProcess
    hello: Hello
    owned: AsyncExitStack

    async def stop(self) -> None:
        """End the process, and release its sandbox, proxy and package."""
        await self.owned.aclose()


@dataclass(frozen=True)
class OwnSandboxes:
    """Starts processes in sandboxes."""

    store: PackageStore
    confinement: Confinement
    python: str
    bounds: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of HostedConfig that bound a process. `Any`: numbers of several kinds."""
    addresses: Mapping[str, frozenset[Address]] = field(default_factory=dict[str, frozenset[Address]])
    timings: HostTimings = TIMINGS

    async def start(self, key: OwnEnvironmentKey, wheel: BlobRef) -> OwnProcess:
        """A process that is ready for calls.

        Raises: HostUnavailable; WrongOptions if the package lacks the environment, or it takes arguments or operator options; as
        `PackageStore.acquire`.
        """
        async with AsyncExitStack() as stack:
            package = await self.store.acquire(key.tenant, wheel)
            stack.push_async_callback(self.store.release, key.tenant, wheel)
            path = package.wheel.environments.get(key.environment)
            if path is None:
                known = ", ".join(sorted(package.wheel.environments))
                raise WrongOptions(f"package {package.wheel.versioned_name} has no environment '{key.environment}'; it has {known}")
            socket = None
            if addresses := self.addresses.get(key.tenant):
                proxy = Proxy(self.store.folder, addresses)
                stack.push_async_callback(proxy.stop)
                socket = await proxy.start()
            config = PackageConfig(
                python=self.python, environment=path, package=package.folder, proxy=socket, variables=VARIABLES, **self.bounds
            )
            host = HostProcess(f"{OWN_FAMILY}@{key.package[:12]}", config, self.timings, self.confinement)
            stack.push_async_callback(host.stop)
            await host.start()
            assert host.hello is not None
            if host.hello.arguments or host.hello.operator_options:
                raise WrongOptions(
                    f"environment '{key.name}' takes arguments or options of an operator; those of packages take options alone"
                )
            return OwnProcess(host, host.hello, stack.pop_all())


class OwnHost:
    """One environment's process and calls. Calls wait until `hosts.py` opens it, and take turns by task."""

    def __init__(self, key: OwnEnvironmentKey, wheel: BlobRef) -> None:
        self.key = key
        self.wheel = wheel
        self.weight = 1.0
        self.tasks: set[str] = set()
        """Tasks that have called the environment and have not ended."""
        self.process: OwnProcess | None = None
        self.has_place = False
        self.holder: asyncio.Task[None] | None = None
        """Task that holds the host's place for a process; None without calls."""
        self.calls = 0
        """Number of calls that wait or run."""
        self.used_at = time.monotonic()
        self.failure: Exception | None = None
        self.failed_at = 0.0
        self.idle = asyncio.Event()
        """Set while no call waits or runs."""
        self.vacant = asyncio.Event()
        """Set while no call runs."""
        self.vacant.set()
        self._running = 0
        self._slots: FairSlots | None = None
        """Slots that calls may take; None while the host is closed."""
        self._entered = FairSlots(1)
        """Slots that running calls have taken, kept after the host is closed."""
        self._opening: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @contextmanager
    def calling(self) -> Generator[None]:
        """Context of a call, including its wait."""
        self.calls += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.calls -= 1
            self.used_at = time.monotonic()
            if not self.calls:
                self.idle.set()

    async def enter(self, claimant: Claimant) -> OwnProcess:
        """The process, for one call, until `leave`. Raises: the error of its start."""
        while True:
            slots = self._slots
            if slots is None or self.process is None:
                await asyncio.shield(self._opening)
                continue
            await slots.acquire(claimant)
            if self._slots is slots:
                self._running += 1
                self.vacant.clear()
                return self.process
            slots.release(claimant, 0.0)

    def leave(self, claimant: Claimant, service_s: float) -> None:
        self._running -= 1
        if not self._running:
            self.vacant.set()
        self._entered.release(claimant, service_s)

    def open(self) -> None:
        """Admit calls; the process has started and has a place."""
        assert self.process is not None
        total = 1 if self.process.hello.cpu_bound else MAX_CONCURRENT_CALLS
        self._slots = self._entered = FairSlots(total, max(1, total - 1))
        self._opening.set_result(None)

    def close(self) -> None:
        """Admit no further calls."""
        self._slots = None
        self._opening = asyncio.get_running_loop().create_future()

    def fail(self, error: Exception) -> None:
        """Fail the waiting calls."""
        self.failure, self.failed_at = error, time.monotonic()
        self._opening.set_exception(error)
        self._opening.exception()  # for asyncio's log, when no call is left
        self._opening = asyncio.get_running_loop().create_future()
