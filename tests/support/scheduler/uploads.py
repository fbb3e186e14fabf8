"""Uploads of packages to a running scheduler, and an environment service that checks them."""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from common import streams
from common.bus import Bus, Delivery, Outgoing, Slots
from common.messages import (
    OWN_FAMILY,
    PART_BYTES,
    CheckPackage,
    DeletePackage,
    OwnEnvironment,
    PackageChecked,
    ReplicaReport,
    UploadPackage,
)
from common.runtime.service import report_replica
from tests.support.scheduler.stages import Stages, World
from tests.support.waiting import at_work, eventually

WHEEL = bytes(range(256)) * (3 * PART_BYTES // 256) + b"the last part"
"""Bytes of a package in four parts; the stand-in for the environment service looks into none."""


def digest_of(wheel: bytes) -> str:
    return hashlib.sha256(wheel).hexdigest()


@dataclass
class PackageStages(Stages):
    """Also checks packages: each has the environment `game`, unless there is an objection."""

    wrong: str | None = None
    packages: list[CheckPackage] = field(default_factory=list[CheckPackage])

    async def check_package(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        asked = delivery.read(CheckPackage)
        self.packages.append(asked)
        found = {} if self.wrong else {"name": "games", "version": "1.0", "environments": [OwnEnvironment(name="game")]}
        answer = PackageChecked(tenant=asked.tenant, package=asked.package, objection=self.wrong, **found)
        yield Outgoing(streams.package_checked(asked.tenant, asked.package), answer, "")


@asynccontextmanager
async def serving_own(bus: Bus, stages: PackageStages) -> AsyncGenerator[None]:
    """A replica of the environment service that serves packages, until the block ends."""
    report = ReplicaReport(replica="own", service="env", families=[OWN_FAMILY], environments=[])
    handlers = (
        (streams.env_packages(OWN_FAMILY), stages.check_package),
        (streams.env_checks(OWN_FAMILY), stages.check),
        (streams.env_opens(OWN_FAMILY), stages.open),
    )
    async with AsyncExitStack() as working:
        await working.enter_async_context(at_work(report_replica(bus, lambda: report)))
        for consumer, handler in handlers:
            await working.enter_async_context(at_work(bus.consume(consumer, handler, Slots(8))))
        yield


def part(wheel: bytes, request: str, offset: int = 0, tenant: str = "acme", **changes: Any) -> Outgoing:
    """Message with one part of `wheel`. `changes`: of its fields."""
    values = {"digest": digest_of(wheel), "size_bytes": len(wheel), "data": wheel[offset : offset + PART_BYTES]}
    job = UploadPackage(tenant=tenant, request=request, offset=offset, **(values | changes))
    return Outgoing(streams.job("upload", tenant), job, f"{request}:{offset}")


def parts(wheel: bytes, request: str, tenant: str = "acme", **changes: Any) -> list[Outgoing]:
    """Messages that upload `wheel`, in their order."""
    return [part(wheel, request, offset, tenant, **changes) for offset in range(0, len(wheel), PART_BYTES)]


async def send(world: World, *jobs: Outgoing) -> None:
    for job in jobs:
        await world.bus.publish(job)


async def upload(world: World, wheel: bytes, request: str, tenant: str = "acme") -> dict[str, Any]:
    """Upload a wheel; the answer after its check."""
    await send(world, *parts(wheel, request, tenant))
    return await answer(world, "package", request, tenant)


async def delete(world: World, digest: str, request: str, tenant: str = "acme") -> dict[str, Any]:
    await send(
        world, Outgoing(streams.job("delete-package", tenant), DeletePackage(tenant=tenant, request=request, digest=digest), request)
    )
    return await answer(world, "package-deleted", request, tenant)


async def answer(world: World, event: str, request: str, tenant: str = "acme") -> dict[str, Any]:
    """The last answer to a request: that its check goes on is none."""
    query = (
        f"SELECT data FROM events WHERE tenant = '{tenant}' AND event = '{event}' AND data->>'request' = '{request}'"
        " AND coalesce(data->>'state', '') <> 'checking' ORDER BY number DESC LIMIT 1"
    )
    await eventually(lambda: world.rows(query))
    [(data,)] = await world.rows(query)
    return data
