"""Processes for environments of packages: each has its package's folder, a sandbox and, where the tenant has addresses, a proxy."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from common.messages import OWN_FAMILY, BlobRef
from common.resilience.backoff import Backoff
from env_svc.errors import WrongOptions
from env_svc.hosted.addresses import Address
from env_svc.hosted.config import PackageConfig
from env_svc.hosted.confinement import Confinement
from env_svc.hosted.outcomes import Hello
from env_svc.hosted.process import HostProcess, HostTimings
from env_svc.hosted.proxy import Proxy
from env_svc.packages.names import OwnEnvironmentKey
from env_svc.packages.store import PackageStore

TIMINGS = HostTimings(start_timeout_s=30.0, grace_s=1.0, poll_interval_s=0.2, restart=Backoff(0.5, 5.0))
"""Shorter than those of the operator's hosts, since what waits here holds a place that others wait for."""
VARIABLES = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Libraries reserve address space for each thread that they may start."""


@dataclass(frozen=True)
class OwnProcess:
    """A process that was ready, with all that is its own."""

    host: HostProcess
    hello: Hello
    owned: AsyncExitStack

    async def stop(self) -> None:
        """End it, and release its sandbox, proxy and package."""
        await self.owned.aclose()


@dataclass(frozen=True)
class OwnSandboxes:
    """Starts such processes."""

    store: PackageStore
    confinement: Confinement
    python: str
    bounds: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of HostedConfig that bound a process. `Any`: numbers of several kinds."""
    addresses: Mapping[str, frozenset[Address]] = field(default_factory=dict[str, frozenset[Address]])
    timings: HostTimings = TIMINGS

    async def start(self, key: OwnEnvironmentKey, wheel: BlobRef) -> OwnProcess:
        """A process that is ready for calls.

        Raises: HostUnavailable; WrongOptions when the package has no such environment, or one that no name of a task leads to; what
        `PackageStore.acquire` raises.
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
