"""Garbage collection against real NATS and PostgreSQL: superseded messages and blobs are deleted, needed ones kept."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial

import pytest
from sqlalchemy import select

from common import streams
from common.blobs import Blobs
from common.bus import Bus, Delivery, Outgoing
from common.errors import Unavailable
from common.messages import TrainBatch
from scheduler_svc.base.database import Database
from scheduler_svc.base.tables import stored_blobs
from scheduler_svc.training.queries import steps, tasks
from scheduler_svc.training.queries.tasks import find_task
from scheduler_svc.training.results import weight_updates
from scheduler_svc.upkeep.deletion.garbage_collector import GarbageCollector
from scheduler_svc.upkeep.deletion.storage import needed_blobs, superseded_blobs
from tests.scheduler.maintenance.progress import trained
from tests.support.scheduler.stages import Stages, World, running_world, scored, spec
from tests.support.waiting import at_work, eventually, eventually_equals


async def test_finished_task_leaves_no_message(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.run("a")
        await eventually_equals(lambda: asyncio.gather(*map(bus.streams.subjects, streams.IN_FLIGHT)), [{} for _ in streams.IN_FLIGHT])


async def test_steps_do_not_wait_for_garbage_collection(bus: Bus, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    deletions: list[str] = []

    async def block(blobs: Blobs, name: str) -> None:
        deletions.append(name)
        await asyncio.Event().wait()

    monkeypatch.setattr(Blobs, "delete", block)
    async with running_world(bus, database_url, Stages()) as world:
        await world.run("a", spec(steps=6))
        await eventually(lambda: len(deletions) == 1)  # the collector still waits for it


async def test_score_pending_at_another_scheduler_is_kept_while_steps_overtake_it(bus: Bus, database_url: str) -> None:
    taken = asyncio.Event()

    async def hold(deliveries: Sequence[Delivery]) -> None:
        taken.set()
        await asyncio.Event().wait()

    async with running_world(bus, database_url, Stages()) as world:
        async with at_work(bus.consume_batches(streams.SCHEDULER_SCORED, hold, max_batch=1)):
            await world.submit("a")
            await asyncio.wait_for(taken.wait(), timeout=250)
            await world.event("a", "step")  # of other groups: version 1 may train those of version 0 too
            async with world.database.transaction() as tx:
                locked = await tasks.lock_tasks(tx.connection, ["a"])
            await GarbageCollector(world.database, bus, sweep_s=60).after_steps(locked)
        await world.event("a", "finished")


async def test_step_of_a_paused_task_keeps_messages_in_flight(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: True)
    async with running_world(bus, database_url, stages) as world:
        await world.begin("a", opened=4)
        await world.control("pause", "a", until="paused")
        turn = Outgoing(streams.turn("unserved", "a", "0-0"), scored(stages.opened[0], 0, reward=1.0).message, "turn")
        await bus.publish(turn)
        async with world.database.transaction() as tx:
            [task] = await tasks.lock_tasks(tx.connection, ["a"])
        await GarbageCollector(world.database, bus, sweep_s=60).after_steps([task])
        assert await bus.streams.subjects(streams.TURNS) == {turn.subject: 1}


async def test_adapter_that_a_task_started_from_is_kept(bus: Bus, database_url: str) -> None:
    keep = {"adapters": "checkpoints", "checkpoints": 1}
    held = asyncio.Event()

    class Holding(Stages):
        async def train(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
            if delivery.read(TrainBatch).version >= 2:  # a version is stored until two more exist
                await held.wait()
            async for out in super().train(delivery):
                yield out

    async with running_world(bus, database_url, Holding(withheld=lambda group, member: group.task == "b")) as world:
        await world.run("a", spec(steps=8, keep=keep), until="step")
        await world.run("b", spec(start={"task": "a", "version": 1}), until="accepted")
        held.set()
        await world.event("a", "finished")
        async with world.database.transaction() as tx:
            needed = await needed_blobs(tx.connection, "a")
        assert needed is not None
        assert needed.include("a.v1.adapter-0", 1)
        assert not needed.include("a.v2.adapter-0", 2)


async def test_nothing_is_collected_once_a_newer_version_has_migrated(
    bus: Bus, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it needs, for example by a table of its own, this version does not know."""
    collector = GarbageCollector(database, bus, sweep_s=60)
    await collector.sweep()
    monkeypatch.setattr("scheduler_svc.base.database.expected_revision", lambda: "another")
    for collect in (collector.sweep, collector.erase_deleted, partial(collector.after_steps, [])):
        with pytest.raises(Unavailable, match="schema is of another version"):
            await collect()


# ------------------------------------------------------------------------------------------- checkpoints without a state


EVERY = 6


def since(version: int) -> int | None:
    """Only the checkpoints of versions 1, 7, 13, … hold a state."""
    return version - (version - 1) % EVERY if (version - 1) % EVERY else None


def everything(last: int) -> set[str]:
    """Checkpoints and batches of all versions."""
    recorded = {f"a.v{version}.batch-0" for version in range(1, last + 1) if since(version) is not None}
    return recorded | {f"a.v{version}.checkpoint-0" for version in range(1, last + 1)}


async def stored_names(world: World) -> set[str]:
    """Blobs that PostgreSQL counts as stored, without adapters."""
    async with world.database.transaction() as tx:
        found = await tx.connection.execute(select(stored_blobs.c.name).where(stored_blobs.c.kind != "adapter"))
        return set(found.scalars())


@pytest.mark.parametrize(
    ("last", "checkpoints", "batches"),
    [(6, {1, 2, 3, 4, 5, 6}, {2, 3, 4, 5, 6}), (7, {1, 2, 3, 4, 5, 6, 7}, {2, 3, 4, 5, 6}), (8, {7, 8}, {8})],
)
async def test_predecessors_of_a_stateless_checkpoint_are_kept_as_long_as_it(
    bus: Bus, database_url: str, last: int, checkpoints: set[int], batches: set[int]
) -> None:
    expected = {f"a.v{version}.checkpoint-0" for version in checkpoints} | {f"a.v{version}.batch-0" for version in batches}
    async with running_world(bus, database_url, Stages(since=since)) as world:
        await world.submit("a", spec(steps=last, keep={"checkpoints": 2}))
        await trained(world, "a", last)
        await eventually_equals(lambda: stored_names(world), expected)
        async with world.database.transaction() as tx:
            needed = await needed_blobs(tx.connection, "a")
            assert needed is not None
            assert {name for name in needed.kept if ".adapter-" not in name} == expected
            task = await find_task(tx.connection, "a")
            assert task is not None
            old = {name for name in await superseded_blobs(tx.connection, [task]) if ".adapter-" not in name}
            restoring = await steps.restored_from(tx.connection, task)
            announced = await weight_updates.announcement(tx.connection, task)
    assert old == everything(last) - expected  # also those that were deleted before
    first = since(last) or last
    assert set(restoring) == {f"a.v{version}.checkpoint-0" for version in range(first, last + 1)} | {
        f"a.v{version}.batch-0" for version in range(first + 1, last + 1)
    }
    assert announced is not None
    assert announced.checkpoint.since == since(last)
