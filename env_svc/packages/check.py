"""Handler of new packages: each is read, and its environments are loaded in the sandbox, before a task may name it."""

import asyncio
from collections.abc import AsyncIterator, Collection

from common import streams
from common.bus import Delivery, Outgoing
from common.errors import Reject, Retry
from common.messages import CheckPackage, OwnEnvironment, PackageChecked
from env_svc.errors import WrongOptions
from env_svc.hosted.start import HostFailed, HostUnavailable
from env_svc.packages.hosts import OwnHosts
from env_svc.packages.processes import OwnEnvironmentKey
from env_svc.packages.store import PackageStore
from env_svc.packages.wheel import Wheel, WheelRefused, missing_requirements

RETRY_S = 10.0
MAX_COMPONENTS = 64
EVERYWHERE = ("marlaas",)
"""Packages that every interpreter for environments has, whether they are installed or come from a checkout."""


class _Objection(Exception):
    """Reason to refuse a package, in one sentence."""


class PackageChecks:
    """Validates uploaded packages."""

    def __init__(self, store: PackageStore, hosts: OwnHosts, listed: Collection[str]) -> None:
        """`listed`: names of packages that a tenant's package may require."""
        self._store = store
        self._hosts = hosts
        self._listed = (*listed, *EVERYWHERE)

    async def check(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        """CheckPackage → PackageChecked.

        Raises: Reject for a wheel that is not the named package's (`message_consistency.py`); Retry if the first
        attempt fails for a reason outside the package.
        """
        message = delivery.read(CheckPackage)
        try:
            answer = await self._examined(message)
        except _Objection as objection:
            answer = PackageChecked(tenant=message.tenant, package=message.package, objection=str(objection))
        except HostUnavailable as error:
            if delivery.attempt < 2:
                raise Retry(str(error), delay_s=RETRY_S) from None
            answer = PackageChecked(tenant=message.tenant, package=message.package, objection=str(error))
        yield Outgoing(
            streams.package_checked(message.tenant, message.package),
            answer,
            f"package:{message.tenant}:{message.package}:{delivery.sequence}",
        )

    async def _examined(self, message: CheckPackage) -> PackageChecked:
        """Raises: _Objection, HostUnavailable, Unavailable."""
        try:
            package = await self._store.acquire(message.tenant, message.wheel)
        except (WheelRefused, Reject) as error:
            raise _Objection(str(error)) from None
        try:
            if missing := missing_requirements(package.wheel, self._listed):
                known = ", ".join(sorted(self._listed))[:1000]
                raise _Objection(f"it needs {', '.join(missing)[:500]}, which the operator has not installed; there is {known}")
            environments = [await self._loaded(message, package.wheel, name) for name in sorted(package.wheel.environments)]
        finally:
            await asyncio.shield(self._store.release(message.tenant, message.wheel))
        wheel = package.wheel
        return PackageChecked(
            tenant=message.tenant,
            package=message.package,
            objection=None,
            name=wheel.name,
            version=wheel.version,
            environments=environments,
        )

    async def _loaded(self, message: CheckPackage, wheel: Wheel, name: str) -> OwnEnvironment:
        """Raises: _Objection, HostUnavailable, Unavailable."""
        key = OwnEnvironmentKey(message.tenant, message.package, name)
        where = f"environment '{name}' ({wheel.environments[name]})"
        try:
            hello = await self._hosts.examine(key, message.wheel, message.claimant)
        except (HostFailed, WrongOptions, WheelRefused) as error:
            raise _Objection(f"{where}: {error}") from None
        except HostUnavailable as error:
            raise HostUnavailable(f"{where}: {error}") from None
        if len(hello.components) > MAX_COMPONENTS:
            raise _Objection(f"{where}: its reward has {len(hello.components)} components, at most {MAX_COMPONENTS} are taken")
        return OwnEnvironment(name=name, components=hello.components)
