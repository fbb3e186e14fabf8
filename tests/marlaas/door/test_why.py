"""What a client is told of a waiting task: each cause, made with a scheduler at work, by the SDK's door."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

from common.bus import Bus, Delivery, Outgoing
from common.messages import CheckEnvironment, ReplicaReport
from common.runtime.service import report_replica
from marlaas.client import Client, UnknownTask
from scheduler_svc.training.decisions.waiting import Kind
from tests.support.scheduler.stages import POOLS, Stages, World, running_world, spec
from tests.support.waiting import at_work, eventually

TRAINER = ReplicaReport(replica="three", service="trainer", pool="tiny")
MANY = {"group_size": 2, "groups_per_step": 50}
TWO_POOLS = {**POOLS, "idle": POOLS["tiny"]}


class Held(Stages):
    """Checks of tasks whose id begins with `unchecked`, and groups of those with `slow`, are never answered."""

    async def check(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        if not delivery.read(CheckEnvironment).task.startswith("unchecked"):
            async for out in super().check(delivery):
                yield out


@asynccontextmanager
async def waiting_world(bus: Bus, database_url: str, *, sequences: int = 64) -> AsyncGenerator[World]:
    stages = Held(trains=False, withheld=lambda group, member: group.task.startswith("slow"))
    async with (
        running_world(bus, database_url, stages, sequences=sequences, pools=TWO_POOLS) as world,
        at_work(report_replica(bus, lambda: TRAINER)),
    ):
        yield world


async def told(client: Client, task: str, kind: Kind, number: float) -> str:
    """The sentence, once the cause is this one; replicas' reports are read every two seconds."""

    async def is_told() -> bool:
        found = await client.why(task)
        return (found.cause, found.number) == (kind.value, number)

    await eventually(is_told)
    return (await client.why(task)).sentence


async def test_places_limits_and_pauses(bus: Bus, nats_url: str, database_url: str) -> None:
    async with (
        waiting_world(bus, database_url, sequences=4) as world,  # 6 in flight, by oversubscription
        Client.connect(nats_url, "acme") as acme,
        Client.connect(nats_url, "globex") as globex,
        Client.connect(nats_url) as operator,
    ):
        await world.begin("slow-a", spec(algorithm=MANY), opened=3)
        assert "all are its own" in await told(acme, "slow-a", Kind.CAPACITY, 6)
        await world.run("slow-b", spec(tenant="globex", algorithm=MANY), until="accepted")
        sentence = await told(globex, "slow-b", Kind.SHARE, 6)
        assert "other tenants 6" in sentence
        assert "acme" not in sentence
        assert await operator.why("slow-b") == await globex.why("slow-b")
        await world.execute(
            "INSERT INTO limits (tenant, max_sequences) VALUES ('acme', 7) ON CONFLICT (tenant) DO UPDATE SET max_sequences = 7"
        )
        await told(acme, "slow-a", Kind.QUOTA, 7)
        await world.execute("INSERT INTO limits (tenant, max_tokens) VALUES ('acme', 0) ON CONFLICT (tenant) DO UPDATE SET max_tokens = 0")
        await told(acme, "slow-a", Kind.BUDGET, 0)
        await acme.pause("slow-a")
        assert "`marlaas resume` continues" in await told(acme, "slow-a", Kind.PAUSED, 3)
        for task in ("slow-b", "slow-c"):
            with pytest.raises(UnknownTask) as refused:
                await acme.why(task)
            assert str(refused.value) == f"no task '{task}'; did you mean 'slow-a'?"
        await acme.cancel("slow-a")
        await acme.wait("slow-a")
        ended = await acme.why("slow-a")
        assert (ended.cause, ended.number, ended.sentence) == (None, None, "it is cancelled: it waits for nothing")


async def test_checks_replicas_trainers_and_the_pace(bus: Bus, nats_url: str, database_url: str) -> None:
    async with waiting_world(bus, database_url) as world, Client.connect(nats_url, "acme") as client:
        await world.submit("unchecked")
        await world.rows_become("SELECT state FROM tasks WHERE id = 'unchecked'", [("submitted",)])
        await told(client, "unchecked", Kind.ENVIRONMENT, 1)
        for number in range(4):
            await world.submit(f"unchecked-{number}")
        await world.rows_become("SELECT count(*) FROM tasks", [(5,)])
        assert "4 other tasks of its tenant" in await told(client, "unchecked-3", Kind.QUOTA, 4)
        for task in ("unchecked-2", "unchecked-3"):
            await client.cancel(task)
            await client.wait(task)
        for number in range(2):
            await client.cancel(f"unchecked-{number}")
        await world.run("elsewhere", spec(pool="idle"), until="accepted")
        assert "0 rollout replicas serve pool 'idle'" in await told(client, "elsewhere", Kind.NO_REPLICA, 0)
        await world.begin("first", batches=1)
        await world.begin("second", spec(tenant="globex"), batches=2)
        await told(client, "first", Kind.TRAINER, 1)
        async with Client.connect(nats_url, "globex") as other:
            sentence = await told(other, "second", Kind.TRAINER, 2)
            assert sentence == "its step is number 2 in line for the one trainer: how long steps take here is not known yet"
        await world.run("slow", until="accepted")
        await world.rows_become("SELECT admitted FROM tasks WHERE id = 'slow'", [(4,)])
        await told(client, "slow", Kind.PACE, 2)
        world.rollout = world.rollout.model_copy(update={"busy": {"sequences": 1.0}})
        await world.execute("UPDATE groups SET admitted_at = now() - interval '500 s' WHERE task = 'slow'")

        async def is_slow() -> bool:
            found = await client.why("slow")
            return found.cause == Kind.ENVIRONMENT and 500 <= (found.number or 0) < 600

        await eventually(is_slow)
        assert "environment 'toy' is slow" in (await client.why("slow")).sentence
