"""A deleted task leaves no content in any store, file or log; real NATS and PostgreSQL."""

from pathlib import Path

import pytest

from common import streams
from common.blobs import Blobs
from common.bus import Bus
from tests.support.scheduler.canaries import (
    CANARY,
    everything_published,
    in_streams,
    in_tables,
    leave_in_queues,
    letter,
    plant_letter,
    planted,
    planting_world,
)
from tests.support.scheduler.finished import LONG, clean
from tests.support.scheduler.stages import World, spec
from tests.support.waiting import eventually

TABLES = {"tasks", "groups", "trajectories", "events", "dead_letters"}
"""Tables with a text of the tenant's."""
STREAMS = {"PROMPTS", "TURNS", "SCORED", "BATCHES", "EVENTS", "FAILED", "KV_tasks", "OBJ_blobs"}
"""Streams whose files held one; that of JOBS has no message any more."""


async def digests(world: World, task: str) -> set[str]:
    return {blob.name for blob in await Blobs(world.bus).listed() if blob.name.startswith(f"{task}.")}


async def test_deleted_task_leaves_no_content_in_tables_files_and_logs(
    bus: Bus, database_url: str, nats_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with planting_world(bus, database_url, tmp_path, clean=("other", "live")) as world:
        await world.submit("live", spec(tenant="globex", limits=LONG))
        await leave_in_queues(world, "live")
        await world.run("other", spec(tenant="globex", steps=6))
        await world.run("a", planted())
        await world.run("stopped", planted(steps=50), until="step")
        await plant_letter(world, "a")
        await world.control("cancel", "stopped", reason=CANARY, until="cancelled")
        await everything_published(world)
        before = await digests(world, "other")
        assert await in_tables(world) == TABLES
        await eventually(lambda: in_streams(nats_folder) == STREAMS)  # NATS writes some of them a little later
        for task in ("a", "stopped"):
            await world.control("delete", task, until="deleted")
        assert await in_tables(world) == set()
        await eventually(lambda: not in_streams(nats_folder))  # the tests' server rewrites files every second
        assert await digests(world, "other") == before != set()
        await clean(world)
    out = capfd.readouterr()
    assert CANARY not in out.out + out.err + (tmp_path / "nats.log").read_text()


async def test_reports_that_come_after_a_deletion_are_erased_by_the_sweep(
    bus: Bus, database_url: str, nats_folder: Path, tmp_path: Path
) -> None:
    async with planting_world(bus, database_url, tmp_path, clean=()) as world:
        await world.run("a", planted())
        await everything_published(world)
        await world.control("delete", "a", until="deleted")
        await bus.publish(letter("a"))
        await eventually(lambda: acknowledged(world))
        await eventually(lambda: in_streams(nats_folder) == {"FAILED"})
        await world.scheduler._collector.sweep()  # pyright: ignore[reportPrivateUsage]
        assert await in_tables(world) == set()
        await eventually(lambda: not in_streams(nats_folder))


async def acknowledged(world: World) -> bool:
    return await world.bus.streams.acknowledged(streams.SCHEDULER_FAILED) == 1
