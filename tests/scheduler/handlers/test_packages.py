"""Uploaded packages: parts, the check, the tasks that name them, and deletion. Real NATS and PostgreSQL."""

import hashlib
from collections.abc import AsyncIterator
from typing import Any

from common import streams
from common.blobs import Blobs
from common.bus import Bus, Delivery, Outgoing, Slots
from common.messages import (
    PART_BYTES,
    CheckPackage,
    DeletePackage,
    Event,
    OwnEnvironment,
    PackageChecked,
    ReplicaReport,
    UploadPackage,
    wheel_name,
)
from common.runtime.service import report_replica
from tests.conftest import at_work
from tests.scheduler.stages import Stages, World, running_world, spec

WHEEL = bytes(range(256)) * 4096 + b"end"
DIGEST = hashlib.sha256(WHEEL).hexdigest()
OWN = ReplicaReport(replica="own", service="env", families=["own"], environments=[])


async def upload(world: World, request: str, wheel: bytes = WHEEL, *, digest: str = DIGEST, sent: slice = slice(None)) -> None:
    """Publish parts of a wheel, the last first."""
    for offset in list(range(0, len(wheel), PART_BYTES))[::-1][sent]:
        data = wheel[offset : offset + PART_BYTES]
        part = UploadPackage(tenant="acme", request=request, digest=digest, size_bytes=len(wheel), offset=offset, data=data)
        await world.bus.publish(Outgoing(streams.upload("acme"), part, f"{request}:{offset}"))


async def answer(world: World, request: str, tenant: str = "acme", event: str = "package", state: str | None = None) -> dict[str, Any]:
    """Data of the first event that answers the request, in that state."""
    async for delivery in world.bus.streams.follow(streams.EVENTS, streams.events(tenant, "none")):
        found = delivery.read(Event)
        if found.event == event and found.data.get("request") == request and state in (None, found.data.get("state")):
            return found.data
    raise AssertionError(request)


async def delete(world: World, request: str, tenant: str = "acme") -> dict[str, Any]:
    job = DeletePackage(tenant=tenant, request=request, digest=DIGEST[:12])
    await world.bus.publish(Outgoing(streams.delete_package(tenant), job, request))
    return await answer(world, request, tenant, "package-deleted")


async def check(delivery: Delivery) -> AsyncIterator[Outgoing]:
    asked = delivery.read(CheckPackage)
    found = PackageChecked(
        tenant=asked.tenant, package=asked.package, objection=None, name="game", version="1", environments=[OwnEnvironment(name="game")]
    )
    yield Outgoing(streams.package_checked(asked.tenant, asked.package), found, f"checked:{asked.tenant}:{asked.package}")


async def test_a_package_is_uploaded_used_by_its_tenant_alone_and_deleted_when_no_task_uses_it(bus: Bus, database_url: str) -> None:
    stages = Stages(trains=False)
    async with running_world(bus, database_url, stages) as world:
        await upload(world, "one")
        assert "family 'own'" in (await answer(world, "one", state="checking"))["reason"]
        async with (
            at_work(report_replica(bus, lambda: OWN)),
            at_work(bus.consume(streams.env_packages("own"), check, Slots(2))),
            at_work(bus.consume(streams.env_checks("own"), stages.check, Slots(2))),
            at_work(bus.consume(streams.env_opens("own"), stages.open, Slots(2))),
        ):
            assert (await answer(world, "one", state="usable"))["environments"] == ["own:game"]
            assert await Blobs(bus).names() == [wheel_name("acme", DIGEST)]
            await upload(world, "again", sent=slice(1))
            assert (await answer(world, "again"))["state"] == "usable"
            own: dict[str, Any] = {"environment": {"name": f"own:game@{DIGEST[:12]}"}}
            refused = await world.run("foreign", spec(tenant="globex", **own), until="rejected")
            assert "it has none: upload one" in refused["reasons"][0]
            await world.run("a", spec(**own), until="accepted")
            assert stages.checks[-1].package is not None
            assert stages.checks[-1].package.sha256 == DIGEST
            assert "1 task that has not ended uses" in (await delete(world, "early"))["reasons"][0]
            assert "no package" in (await delete(world, "foreign", tenant="globex"))["reasons"][0]
            await world.control("cancel", "a", until="cancelled")
            assert (await delete(world, "late"))["bytes"] == len(WHEEL)
            assert await Blobs(bus).names() == []
            await world.rows_become("SELECT count(*) FROM packages", [(0,)])


async def test_parts_that_contradict_each_other_or_the_digest_are_refused(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await upload(world, "one", sent=slice(1))
        await world.rows_become("SELECT count(*) FROM package_parts", [(1,)])
        await upload(world, "other", WHEEL[:-3] + b"END", sent=slice(1))
        assert "differs" in (await answer(world, "other"))["reasons"][0]
        await upload(world, "longer", WHEEL + b"x", sent=slice(1))
        assert "bytes" in (await answer(world, "longer"))["reasons"][0]
        await upload(world, "false", digest="0" * 64)
        assert "not the announced one" in (await answer(world, "false"))["reasons"][0]
        await world.rows_become("SELECT count(*) FROM packages", [(1,)])
