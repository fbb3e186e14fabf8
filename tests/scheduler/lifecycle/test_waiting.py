"""Why a task waits, asked of a scheduler at work."""

import pytest

from common import streams
from common.bus import Bus, Outgoing
from common.messages import DeadLetter, ReplicaReport, WhyAnswer
from scheduler_svc.tenancy.decisions.shares import Capacity
from scheduler_svc.training.decisions.waiting import Cause, Kind
from scheduler_svc.training.waiting import why
from tests.support.scheduler.asking import asker
from tests.support.scheduler.stages import Stages, World, running_world, spec
from tests.support.waiting import eventually_equals

REPORTS = [
    ReplicaReport(replica="one", service="env", families=["toy"]),
    ReplicaReport(replica="two", service="rollout", pool="tiny", sequences=4, kv_tokens=10**6, busy={"sequences": 4.0}),
    ReplicaReport(replica="three", service="trainer", pool="tiny"),
]
MANY = {"group_size": 2, "groups_per_step": 50}


async def ask(world: World, task: str, tenant: str = "acme", *, room: int = 6, reports: list[ReplicaReport] = REPORTS) -> Cause | None:
    async with world.database.transaction() as tx:
        full = await world.bus.streams.full(streams.BETWEEN_SERVICES)
        return await why(tx.connection, tenant, task, reports, {"tiny": Capacity(room, 10**9)}, full)


async def test_the_cause_follows_what_happens(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: True, trains=False)
    async with running_world(bus, database_url, stages, sequences=4) as world:  # 6 in flight, by oversubscription
        await world.begin("a", spec(algorithm=MANY), opened=3)
        await world.run("b", spec(tenant="globex", algorithm=MANY), until="accepted")
        cause = await ask(world, "a")
        assert cause is not None and (cause.kind, cause.number) == (Kind.CAPACITY, 6)
        cause = await ask(world, "b", "globex")
        assert cause is not None and (cause.kind, cause.number) == (Kind.SHARE, 6)
        assert "acme" not in cause.sentence and "other tenants 6" in cause.sentence
        cause = await ask(world, "b", "globex", reports=REPORTS[:1])
        assert cause is not None and cause.kind == Kind.NO_REPLICA
        await world.execute(
            "INSERT INTO limits (tenant, max_sequences) VALUES ('acme', 7) ON CONFLICT (tenant) DO UPDATE SET max_sequences = 7"
        )
        cause = await ask(world, "a")
        assert cause is not None and (cause.kind, cause.number) == (Kind.QUOTA, 7)
        await world.execute("INSERT INTO limits (tenant, max_tokens) VALUES ('acme', 0) ON CONFLICT (tenant) DO UPDATE SET max_tokens = 0")
        cause = await ask(world, "a")
        assert cause is not None and (cause.kind, cause.number) == (Kind.BUDGET, 0)
        await world.control("pause", "a", until="paused")
        cause = await ask(world, "a")
        assert cause is not None and (cause.kind, cause.number) == (Kind.PAUSED, 3)
        with pytest.raises(LookupError):
            await ask(world, "a", "globex")


async def test_a_step_names_its_place_and_a_task_its_pace(bus: Bus, database_url: str) -> None:
    stages = Stages(trains=False, withheld=lambda group, member: group.task == "slow")
    async with running_world(bus, database_url, stages) as world:
        await world.begin("first", batches=1)
        await world.begin("second", batches=2)
        await world.rows_become("SELECT count(*) FROM steps WHERE state = 'batched'", [(2,)])
        causes = [await ask(world, task) for task in ("first", "second")]
        assert [cause and (cause.kind, cause.number) for cause in causes] == [(Kind.TRAINER, 1), (Kind.TRAINER, 2)]
        await world.run("slow", until="accepted")
        await world.rows_become("SELECT admitted FROM tasks WHERE id = 'slow'", [(4,)])
        cause = await ask(world, "slow", room=100)
        assert cause is not None and (cause.kind, cause.number) == (Kind.PACE, 2)


def filling(subject: str, number: int) -> Outgoing:
    """A message of which four fit into the smallest stream."""
    return Outgoing(
        subject,
        DeadLetter(stage="", subject="", reason="", attempts=1, headers={}, body=bytes(7 * 2**20), sequence=1),
        f"{subject}:{number}",
    )


@pytest.mark.parametrize(
    ("subject", "stream", "turn"),
    [
        ("prompts.sample.other.theirs.{}", streams.PROMPTS, "for the service rollout, which has 0 live replicas for it"),
        ("prompts.sample.tiny.theirs.{}", streams.PROMPTS, "for the service rollout, which has 1 live replicas for it"),
        ("trajectories.turn.toy.theirs.{}", streams.TURNS, "for the service env, which has 1 live replicas for it"),
        ("trajectories.scored.theirs.{}", streams.SCORED, "for the service trainer, which has 1 live replicas for it"),
        ("trajectories.batch.other.theirs-{}", streams.BATCHES, "for the service trainer, which has 0 live replicas for it"),
    ],
)
async def test_a_full_stream_is_named_with_whose_turn_it_is(
    bus: Bus, nats_url: str, database_url: str, subject: str, stream: streams.Stream, turn: str
) -> None:
    stages = Stages(withheld=lambda group, member: True, trains=False)
    async with running_world(bus, database_url, stages, sequences=4) as world:
        await world.begin("a", spec(algorithm=MANY), opened=3)
        cause = await ask(world, "a")
        assert cause is not None and cause.kind == Kind.CAPACITY
        await bus.declare(streams_bytes=1)
        for number in range(4):
            await bus.publish(filling(subject.format(number), number))
        cause = await ask(world, "a")
        assert cause is not None and (cause.kind, cause.number) == (Kind.QUEUE, 32 * 2**20)
        assert cause.sentence.startswith(f"stream {stream.name} has ") and turn in cause.sentence
        assert "theirs" not in cause.sentence
        async with asker(nats_url) as asks:

            async def cause_by_asking() -> str | None:
                return (await asks.ask(WhyAnswer, "acme", "why", task="a")).cause

            await eventually_equals(cause_by_asking, "queue")  # without the streams, if NATS takes long to say how full they are
        await bus.streams.purge(stream, ">")
        cause = await ask(world, "a")
        assert cause is not None and cause.kind == Kind.CAPACITY
