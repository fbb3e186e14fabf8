"""Homes of tasks whose pool is on two accelerators: chosen, used for turns and batches, left when their executor is lost."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest
from sqlalchemy import NullPool, create_engine, text

from common import streams
from common.bus import Bus, Delivery, Handler, Outgoing, Slots
from common.homes import OWN_QUEUE
from common.messages import TrainBatch
from common.pools import Pool, Pools, named_replicas
from common.runtime.service import report_replica
from scheduler_svc.base.database import Database
from scheduler_svc.migrate import end_sharing
from scheduler_svc.training.homes import Homes, settle
from scheduler_svc.training.queries.tasks import Home
from scheduler_svc.upkeep.replicas import ReplicaRegistry
from scheduler_svc.upkeep.stalls import resend_lost_steps
from tests.scheduler.accelerators.reports import report
from tests.scheduler.gated import GatedStages, forget_message_ids, is_relayed
from tests.support.scheduler.stages import Stages, World, running_world, spec
from tests.support.scheduler.statements import execute, select
from tests.support.waiting import at_work, eventually, eventually_equals

POOLS: Pools = {"tiny": Pool(model="models/tiny", context_tokens=512, max_rank=16, generate_on=("a", "b"), train_on=("a", "b"))}
HOMES = "SELECT task, service, replica, from_version, before FROM task_homes ORDER BY task, service"
EXECUTORS = """
INSERT INTO accelerators (id, spec) VALUES ('a', '{}'), ('b', '{}');
INSERT INTO executors (accelerator, id, pool, service)
    SELECT a, s || '-tiny', 'tiny', s FROM unnest(ARRAY['a', 'b']) a, unnest(ARRAY['rollout', 'trainer']) s
"""
GROUP = (
    "INSERT INTO groups (size, task, number, version, state, row, seed, charged_tokens, deadline_at)"
    " VALUES (2, '{task}', 0, {version}, 'open', 0, 0, 0, now())"
)
EVERYONE = [report(service, accelerator) for service in ("rollout", "trainer") for accelerator in ("a", "b")]


def task_row(task: str, *, version: int = 0, admitted: int = 0) -> str:
    return (
        "INSERT INTO tenants (id) VALUES ('acme') ON CONFLICT DO NOTHING; "
        "INSERT INTO tasks (submission, id, tenant, name, pool, spec, state, priority, steps, group_size, groups_per_step, max_staleness,"
        f" trajectory_tokens, admitted, version) VALUES ('', '{task}', 'acme', '{task}', 'tiny', '{{}}', 'running', 0, 90, 2, 2, 0, 9,"
        f" {admitted}, {version})"
    )


# --------------------------------------------------------------------------------------------------------------- choose


class Looks:
    """Looks of one replica at the rows of `database`."""

    def __init__(self, database: Database, lost_s: float = 60.0) -> None:
        self.reports = list(EVERYONE)
        self.homes = Homes(database, named_replicas(POOLS), lambda: self.reports, time.time, review_s=0.0, lost_s=lost_s)

    async def __call__(self) -> None:
        await self.homes.look()

    def without(self, accelerator: str) -> None:
        self.reports = [one for one in EVERYONE if f"{OWN_QUEUE}@{accelerator}" not in one.busy]


@pytest.fixture
async def looks(database: Database) -> Looks:
    await execute(database, *EXECUTORS.split(";"))
    return Looks(database)


async def test_tasks_are_spread_over_the_accelerators_of_their_pool(database: Database, looks: Looks) -> None:
    await execute(database, *task_row("s").split("; "), *task_row("t").split("; "))
    await looks()
    found = await select(database, HOMES)
    assert {(row[0], row[1]) for row in found} == {(task, service) for task in "st" for service in ("rollout", "trainer")}
    assert sorted(row[2] for row in found) == ["a", "a", "b", "b"]  # type: ignore[type-var]
    assert {row[3:] for row in found} == {(0, None)}, "nothing of version 0 has been sent"
    await looks()
    assert await select(database, HOMES) == found


async def test_executor_without_a_queue_of_its_own_is_no_home(database: Database, looks: Looks) -> None:
    """An older process, one that is faulty, and one that an operator holds."""
    looks.reports = [report("rollout", "a", able=0.0), report("rollout", "b"), report("trainer", "a"), report("trainer", "b")]
    looks.reports[2] = looks.reports[2].model_copy(update={"busy": {}})
    await execute(database, *task_row("s").split("; "))
    await looks()
    assert [row[:3] for row in await select(database, HOMES)] == [("s", "rollout", "b"), ("s", "trainer", "b")]
    await execute(database, *task_row("t").split("; "), "UPDATE executors SET held = 'park' WHERE accelerator = 'b'")
    await looks()
    assert [row[0] for row in await select(database, HOMES)] == ["s", "s"]


async def test_task_moves_at_a_version(database: Database) -> None:
    """What was sent for a version goes to its home to the end; the next version, or one without work yet, to the new one."""
    await execute(database, *EXECUTORS.split(";"), *task_row("t", version=3, admitted=1).split("; "))
    await execute(database, GROUP.format(task="t", version=3))
    moved: list[object] = []
    async with database.transaction() as tx:
        for service, accelerator in (("rollout", "a"), ("rollout", "b"), ("trainer", "a"), ("trainer", "b")):
            found = await settle(tx.connection, "t", service, accelerator, 1.0)
            assert found is not None
            moved.append((service, found.version, found.before))
    assert moved == [("rollout", 4, None), ("rollout", 4, None), ("trainer", 3, None), ("trainer", 3, "a")]
    await execute(database, "UPDATE tasks SET version = 4")
    async with database.transaction() as tx:
        found = await settle(tx.connection, "t", "rollout", "a", 2.0)
        assert found is not None and (found.version, found.before) == (4, "b")


async def test_task_whose_groups_are_being_opened_moves_at_the_next_version(database: Database) -> None:
    await execute(database, *EXECUTORS.split(";"), *task_row("s").split("; "))

    async def move() -> Home | None:
        async with database.transaction() as tx:
            return await settle(tx.connection, "s", "rollout", "b", 10.0)

    async with database.transaction() as tx:
        await tx.connection.execute(text("SELECT FROM tasks FOR UPDATE"))
        await tx.connection.execute(text(GROUP.format(task="s", version=0)))
        moving = asyncio.create_task(move())
        await eventually_equals(lambda: select(database, "SELECT count(*) FROM pg_locks WHERE NOT granted"), [(1,)])
    assert await moving == Home("b", 1, None, 10.0)


async def test_lost_executor_is_left_after_a_while_and_not_for_a_moment(database: Database, looks: Looks) -> None:
    await execute(database, *task_row("s").split("; "), *task_row("t").split("; "))
    await looks()
    before = await select(database, HOMES)
    looks.without("a")
    await looks()
    assert await select(database, HOMES) == before
    assert await select(database, "SELECT accelerator FROM executors WHERE has_queue ORDER BY id") == [("b",), ("b",)]
    later = Looks(database, lost_s=0.0)
    later.without("a")
    await later()
    after = await select(database, HOMES)
    assert {row[2] for row in after} == {"b"}
    await Looks(database)()
    assert await select(database, HOMES) == after, "a move costs, and nothing is gained yet"


# ---------------------------------------------------------------------------------------------------------------- route


@dataclass
class Trainers:
    """Batches by the queue in which they came."""

    stages: Stages
    batches: list[tuple[str, TrainBatch]] = field(default_factory=list)

    def of(self, queue: str) -> Handler:
        async def train(delivery: Delivery) -> AsyncIterator[Outgoing]:
            self.batches.append((queue, delivery.read(TrainBatch)))
            async for out in self.stages.train(delivery):
                yield out

        return train


@asynccontextmanager
async def world_with_homes(bus: Bus, database_url: str, stages: Stages) -> AsyncGenerator[tuple[World, Trainers]]:
    trainers = Trainers(stages)
    async with running_world(bus, database_url, stages, pools=POOLS) as world, AsyncExitStack() as stack:
        await execute(world.database, *EXECUTORS.split(";"))
        for one in EVERYONE:
            await stack.enter_async_context(at_work(report_replica(bus, lambda one=one: one)))
        for name in ("a", "b"):
            queue = streams.queue("tiny", name)
            work = bus.consume(streams.trainer_batches(queue), trainers.of(queue), Slots(2))
            await stack.enter_async_context(at_work(work))
        await world.rows_become("SELECT count(*) FROM executors WHERE has_queue", [(4,)])
        yield world, trainers


async def test_groups_and_batches_of_a_task_go_to_its_homes(bus: Bus, database_url: str) -> None:
    stages = GatedStages()
    async with world_with_homes(bus, database_url, stages) as (world, trainers):
        for task in ("s", "t"):
            await world.submit(task, spec(name=task, steps=4))
        await world.rows_become("SELECT count(*) FROM task_homes", [(4,)])
        stages.gate.set()
        await asyncio.gather(*(world.event(task, "finished") for task in ("s", "t")))
        homes_of = {(row.id, service): row.homes[service] for row in await world.rows("SELECT * FROM tasks") for service in row.homes}
        assert len(homes_of) == 4 and {home["replica"] for home in homes_of.values()} == {"a", "b"}
        for group in stages.opened:
            home = homes_of[group.task, "rollout"]
            assert group.home == (home["replica"] if group.version >= home["version"] else None)
        for queue, batch in trainers.batches:
            assert queue == streams.queue("tiny", homes_of[batch.task, "trainer"]["replica"])
        steps = {(batch.task, batch.version) for batch in stages.batches}
        assert steps == {(task, version) for task in ("s", "t") for version in range(4)} and len(trainers.batches) >= 6


async def test_messages_for_a_home_that_an_operator_holds_go_to_the_pools_queue(bus: Bus, database_url: str) -> None:
    stages = GatedStages()
    async with world_with_homes(bus, database_url, stages) as (world, trainers):
        await world.submit("s", spec(steps=4))
        await world.rows_become("SELECT count(*) FROM task_homes", [(2,)])
        await world.execute("UPDATE executors SET held = 'park'")
        stages.gate.set()
        await world.event("s", "finished")
        assert {batch.version for _, batch in trainers.batches} <= {0}, "that of version 0 may have been sent before"
        assert {group.home for group in stages.opened if group.version > 0} == {None}


@pytest.mark.parametrize("left", [("a",), ()])
async def test_task_goes_on_in_the_pools_queue_once_its_pool_is_on_several_accelerators_no_more(
    bus: Bus, database_url: str, owner_url: str, left: tuple[str, ...]
) -> None:
    """Its homes are still known, and nothing reads the queues there. A step sent to one before is resent."""
    stages = GatedStages()
    async with world_with_homes(bus, database_url, stages) as (world, _):
        await world.submit("s", spec(steps=3))
        await world.rows_become("SELECT count(*) FROM task_homes", [(2,)])
        await eventually(lambda: is_relayed(world, backlog=1))
    pools = {"tiny": POOLS["tiny"].model_copy(update={"generate_on": left, "train_on": left})}
    if not left:
        with create_engine(owner_url, poolclass=NullPool).begin() as connection:
            end_sharing(connection)
    async with AsyncExitStack() as stack:
        for one in EVERYONE:  # processes of the earlier file, until they are restarted
            await stack.enter_async_context(at_work(report_replica(bus, lambda one=one: one)))
        world = await stack.enter_async_context(running_world(bus, database_url, stages, pools=pools))
        await world.rows_become("SELECT count(*) FROM executors WHERE has_queue", [(0,)])
        await forget_message_ids(bus)
        stages.gate.set()

        async def is_done() -> bool:
            await resend_lost_steps(world.database, bus, age_s=0)
            return await select(world.database, "SELECT state FROM tasks") == [("finished",)]

        await eventually(is_done)
    assert {group.home for group in stages.opened if group.version > 0} == {None}


async def test_registry_that_was_not_read_yet_is_not_taken_for_an_empty_one(bus: Bus, database: Database, looks: Looks) -> None:
    """A restart of the scheduler would send what it sends then to the pools' queues."""
    await looks()
    registry = ReplicaRegistry(bus, lambda: None)
    restarted = Homes(database, named_replicas(POOLS), lambda: registry.reports if registry.were_read else None, time.time)
    await restarted.look()
    assert await select(database, "SELECT count(*) FROM executors WHERE has_queue") == [(4,)]
    async with at_work(registry.watch()):
        await eventually(lambda: registry.were_read)
        await restarted.look()
    assert await select(database, "SELECT count(*) FROM executors WHERE has_queue") == [(0,)]


async def test_step_in_the_queue_of_a_trainer_that_was_removed_is_resent(bus: Bus, database_url: str) -> None:
    stages = Stages(trains=False)
    async with running_world(bus, database_url, stages) as world:
        await forget_message_ids(bus)
        await world.begin("t", spec(steps=1), batches=1)
        await eventually(lambda: stages.batches)
        message = Outgoing(streams.batch("tiny@gone", "t"), stages.batches[0], "elsewhere")
        await bus.publish(message)
        assert not await resend_lost_steps(world.database, bus, {"tiny@gone"}, age_s=0)
        stages.trains = True

        async def is_resent() -> bool:
            await resend_lost_steps(world.database, bus, {"tiny@a"}, age_s=0)
            return len(stages.batches) > 1

        await eventually(is_resent)
        await world.event("t", "finished")
        await eventually_equals(lambda: bus.streams.subjects(streams.BATCHES, "trajectories.batch.>"), {})  # it may be resent twice
