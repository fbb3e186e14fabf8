"""Delete, prune and sweep while tasks start from each other and steps are trained, in real PostgreSQL and NATS.

In every order, blobs that a step, an evaluation or another task's `start.task` needs are stored at the end.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import text

from common import streams
from common.blobs import Blobs
from common.bus import Bus, Delivery, Outgoing
from common.messages import ControlTask, PruneTasks, SubmitTask, TrainBatch
from scheduler_svc.base.audit import Actor
from scheduler_svc.base.context import HandlerContext
from scheduler_svc.base.database import Database
from scheduler_svc.base.scheduling_policy import SchedulingPolicy
from scheduler_svc.training.queries import tasks
from scheduler_svc.training.submission import Catalog
from scheduler_svc.upkeep.deletion import deletion
from scheduler_svc.upkeep.deletion.deletion import delete_task, prune_tasks
from scheduler_svc.upkeep.deletion.garbage_collector import GarbageCollector
from scheduler_svc.upkeep.deletion.storage import needed_blobs
from scheduler_svc.upkeep.outbox import OutboxRelay
from scheduler_svc.upkeep.replicas import ReplicaRegistry
from scheduler_svc.verbs import jobs
from tests.support.scheduler.finished import StagesWithBlobs, clean, settled, stages
from tests.support.scheduler.stages import POOLS, running_world, spec, within
from tests.support.scheduler.statements import execute
from tests.support.waiting import at_work, eventually

OFFER = Catalog(POOLS, {"toy"})
ROUNDS = 12
LIMIT_S = 120.0
"""Limit of one wait: a loaded machine needs a few seconds."""


@dataclass
class Scene:
    """Task `a` has ended at version 4 and keeps version 1 only because `second` started from it; only the relay runs."""

    database: Database
    bus: Bus
    cleaner: GarbageCollector
    relay: OutboxRelay
    sequence: int = 10**6

    @property
    def context(self) -> HandlerContext:
        registry = ReplicaRegistry(self.bus, lambda: None)
        return HandlerContext(
            self.bus,
            self.database,
            POOLS,
            SchedulingPolicy.ASYNCHRONOUS,
            registry,
            self.cleaner,
            self.relay.wake,
            lambda: None,
            lambda: None,
        )

    def delivery(self, out: Outgoing) -> Delivery:
        self.sequence += 1
        return Delivery(out.subject, {streams.KIND_HEADER: out.message.kind, **out.headers}, out.message.encode(), self.sequence, 1)

    async def delete(self, task: str) -> None:
        await delete_task(self.context, self.delivery(Outgoing(streams.job("delete", "acme"), ControlTask(task=task, tenant="acme"), "")))
        await self.cleaner.erase_deleted()

    async def prune(self) -> None:
        await prune_tasks(self.context, self.delivery(Outgoing(streams.job("prune", "acme"), PruneTasks(tenant="acme", request="r"), "")))

    def submission(self, task: str, version: int) -> Delivery:
        raw = spec(task, start={"task": "a", "version": version})
        return self.delivery(Outgoing(streams.job("submit", "acme"), SubmitTask(task=task, tenant="acme", spec=raw), ""))

    async def submit(self, task: str, version: int) -> None:
        async with self.database.transaction() as tx:
            await jobs.take_job(tx, self.submission(task, version), OFFER, SchedulingPolicy.ASYNCHRONOUS)

    async def accepted(self, names: Sequence[str]) -> int:
        """Number of these names that are tasks."""
        async with self.database.transaction() as tx:
            return len(set(names) & set(await tasks.all_tasks(tx.connection)))

    async def needed_is_stored(self) -> None:
        present = {blob.name for blob in await Blobs(self.bus).listed() if blob.is_whole}
        async with self.database.transaction() as tx:
            for task in await tasks.all_tasks(tx.connection):
                found = await tasks.find_task(tx.connection, task)
                needed = await needed_blobs(tx.connection, task)
                assert found is not None
                assert needed is not None
                assert found.start is None or found.start.blob.name in present, task
                assert set(needed.kept) <= present, task

    async def blocked(self, work: asyncio.Task[None]) -> None:
        """Wait until `work` waits for a lock, or is done."""

        async def is_blocked() -> bool:
            async with self.database.transaction() as tx:
                waiting = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
                return work.done() or bool((await tx.connection.execute(waiting)).scalar_one())

        await eventually(is_blocked)


@asynccontextmanager
async def scene(bus: Bus, database_url: str, folder: Path) -> AsyncGenerator[Scene]:
    async with running_world(bus, database_url, stages(bus, folder)) as world:
        await world.run("a", spec(steps=4, keep={"checkpoints": 4}))
        await world.run("second", spec(start={"task": "a", "version": 1}, steps=1))
        await settled(world)
    async with await Database.connect(database_url) as database:
        await execute(database, """UPDATE tasks SET spec = jsonb_set(spec, '{keep,checkpoints}', '1') WHERE id = 'a'""")
        relay = OutboxRelay(database, bus)
        async with at_work(relay.run()):
            yield Scene(database, bus, GarbageCollector(database, bus, sweep_s=300), relay)


async def test_task_that_starts_from_a_version_either_finds_it_stored_or_is_refused(bus: Bus, database_url: str, tmp_path: Path) -> None:
    """Submissions race with prunes, sweeps and deletions of their source and of the other task that started there."""
    async with scene(bus, database_url, tmp_path) as world:
        accepted = 0
        for round_ in range(ROUNDS):
            dice = random.Random(round_)
            names = [f"heir-{round_}-{number}" for number in range(2)]
            works: list[Callable[[], Awaitable[None]]] = [
                *(lambda name=name: world.submit(name, 1) for name in names),
                world.prune,
                world.cleaner.sweep,
            ]
            if round_ == ROUNDS // 2:
                works.append(lambda: world.delete("a"))
            if round_ == ROUNDS // 3:
                works.append(lambda: world.delete("second"))
            dice.shuffle(works)
            async with within(world.database, LIMIT_S, f"end of round {round_}"):
                await asyncio.gather(*(work() for work in works))
            await world.needed_is_stored()
            accepted += await world.accepted(names)
        assert 0 < accepted < 2 * ROUNDS, "every order had the same outcome: there was no race"


@pytest.mark.parametrize("gone", ["a", "second"])
async def test_submission_waits_for_a_deletion_and_is_refused(gone: str, bus: Bus, database_url: str, tmp_path: Path) -> None:
    async with scene(bus, database_url, tmp_path) as world:
        async with world.database.transaction() as tx:
            assert await deletion.delete(tx, ControlTask(task=gone, tenant="acme"), by=1, sender=Actor("acme", "delete", "key"))
            late = asyncio.create_task(world.submit("heir", 1))
            await world.blocked(late)
            assert not late.done()
        async with within(world.database, LIMIT_S, "end of the second transaction"):
            await late
        assert await world.accepted(["heir"]) == 0
        await world.cleaner.erase_deleted()
        await world.needed_is_stored()


@pytest.mark.parametrize("gone", ["a", "second"])
async def test_deletion_waits_for_a_submission_and_leaves_its_adapter(gone: str, bus: Bus, database_url: str, tmp_path: Path) -> None:
    async with scene(bus, database_url, tmp_path) as world:
        async with world.database.transaction() as tx:
            await jobs.take_job(tx, world.submission("heir", 1), OFFER, SchedulingPolicy.ASYNCHRONOUS)
            late = asyncio.create_task(world.delete(gone))
            await world.blocked(late)
            assert not late.done()
        async with within(world.database, LIMIT_S, "end of the second transaction"):
            await late
        assert await world.accepted(["heir"]) == 1
        await world.cleaner.sweep()
        await world.needed_is_stored()


async def test_prunes_and_sweeps_beside_steps_and_evaluations_delete_nothing_that_those_need(
    bus: Bus, database_url: str, database: Database, tmp_path: Path
) -> None:
    enough = asyncio.Event()

    class Waiting(StagesWithBlobs):
        """From the fifth step on, it waits until there were rounds beside steps."""

        async def train(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
            if delivery.read(TrainBatch).version >= 4:
                await enough.wait()
            async for out in super().train(delivery):
                yield out

    async with running_world(bus, database_url, Waiting(blobs=Blobs(bus), folder=tmp_path)) as world:
        cleaner = GarbageCollector(database, bus, sweep_s=300)
        scene = Scene(database, bus, cleaner, OutboxRelay(database, bus))
        names = [f"live-{number}" for number in range(3)]
        for name in names:
            await world.submit(name, spec(steps=8, evaluation={"every": 2, "prompts": 1}, keep={"checkpoints": 1}))
        rounds = 0
        async with asyncio.TaskGroup() as runners:
            ended = [runners.create_task(world.event(name, "finished")) for name in names]
            while not all(event.done() for event in ended):
                async with within(database, LIMIT_S, f"end of round {rounds}"):
                    await asyncio.gather(scene.prune(), cleaner.sweep())
                rounds += 1
                if rounds == 3:
                    enough.set()
        await settled(world)
        await cleaner.sweep()  # removes members that were scored after the last step
        await clean(world)
        await scene.needed_is_stored()
