"""A small blob store in a real NATS: the alarm before it is full, the steps that wait when it is, and the remedy."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from common.blobs import ROOM, Blobs, StoreUsage
from common.bus import Bus, Delivery, Outgoing
from common.errors import Unavailable
from scheduler_svc.upkeep.deletion.storage import is_alarming
from tests.support.scheduler.finished import StagesWithBlobs, clean
from tests.support.scheduler.stages import World, running_world, spec
from tests.support.waiting import eventually

BLOB_BYTES = 11_000
"""Bytes that one blob takes in the store: content of 10,240, and its name."""
ROOM_FOR = 14


@dataclass
class RecordingStages(StagesWithBlobs):
    """Records why a step could not be stored."""

    refusals: list[str] = field(default_factory=list[str])

    async def train(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        try:
            async for out in super().train(delivery):
                yield out
        except Unavailable as error:
            self.refusals.append(str(error))
            raise


async def test_full_store_is_reported_loses_nothing_and_steps_resume_when_it_has_room(bus: Bus, database_url: str, tmp_path: Path) -> None:
    await bus.declare(blobs_bytes=ROOM_FOR * BLOB_BYTES)
    made = RecordingStages(blobs=Blobs(bus), folder=tmp_path, withheld=lambda group, member: group.task == "held")
    async with running_world(bus, database_url, made) as world:
        await world.run("first", spec(keep={"checkpoints": 2}))
        await world.run("held", spec(tenant="globex"), until="accepted")
        await clean(world)
        assert await world.events("held", "storage") == []
        everything = {"adapters": "all", "checkpoints": 10}
        await world.submit("big", spec(steps=6, keep=everything))
        await eventually(lambda: made.refusals)
        assert set(made.refusals) == {made.refusals[0]}
        assert "the blob store is full: 10240 bytes of big.v" in made.refusals[0]
        assert made.refusals[0].endswith(ROOM)
        for task in ("held", "big"):  # every tenant whose steps would wait
            await eventually(lambda task=task: world.events(task, "storage"))
            [alarm] = await world.events(task, "storage")
            assert alarm["raised"] is True
            assert alarm["limit_bytes"] == ROOM_FOR * BLOB_BYTES
            assert "no step can be stored" in str(alarm["reason"])
        await world.control("delete", "first", until="deleted")  # messages still pass
        assert (await world.event("big", "finished"))["version"] == 6
        await clean(world)
        await world.control("delete", "big", until="deleted")
        await eventually(lambda: _is_cleared(world))


async def _is_cleared(world: World) -> bool:
    """While `big` continued, the alarm may have been cleared and raised several times."""
    raised = [alarm["raised"] for alarm in await world.events("held", "storage")]
    assert raised == ([True, False] * len(raised))[: len(raised)]
    return raised[-1] is False


async def test_full_store_still_deletes_blobs(bus: Bus, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "content").write_bytes(b"x" * 5000)
    blobs = Blobs(bus)
    ref = await blobs.put_folder("a.v1.adapter", tmp_path / "one")
    await bus.declare(blobs_bytes=(await blobs.usage()).used_bytes)
    (tmp_path / "one" / "content").write_bytes(b"y" * 5000)
    with pytest.raises(
        Unavailable, match=r"the blob store is full: 10240 bytes of a\.v2\.adapter-\w+ find no room; free some with `marlaas prune`"
    ):
        await blobs.put_folder("a.v2.adapter", tmp_path / "one")
    await blobs.delete(ref.name)
    assert await blobs.listed() == []
    assert (await blobs.usage()).used_bytes == 0
    assert (await blobs.put_folder("a.v2.adapter", tmp_path / "one")).name.startswith("a.v2")


async def test_limit_above_that_of_nats_changes_nothing(bus: Bus) -> None:
    await bus.declare(blobs_bytes=2**20)
    await bus.declare(blobs_bytes=2**60)
    assert (await Blobs(bus).usage()).limit_bytes == 2**20
    await bus.declare()
    assert (await Blobs(bus).usage()).limit_bytes == 2**20


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_alarm_is_raised_before_the_next_version_finds_no_room_and_does_not_flap(limit: int, used: int, version: int) -> None:
    usage = StoreUsage(min(used, limit), limit)
    raised = is_alarming(usage, threshold=0.8, next_bytes=version, raised=False)
    assert raised == (usage.share >= 0.8 or limit - usage.used_bytes < version)
    assert not raised or is_alarming(usage, threshold=0.8, next_bytes=version, raised=True)
    assert not is_alarming(StoreUsage(used, None), threshold=0.8, next_bytes=version, raised=True)
