"""A text planted in every field that a tenant can fill, and what the stores' files, tables and logs still hold of it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import text

from common import streams
from common.blobs import Blobs
from common.bus import Bus, Delivery, Outgoing, Slots
from common.messages import (
    ChatMessage,
    DeadLetter,
    GroupContext,
    OpenGroup,
    SampledTurn,
    SampleTurns,
    TokenRecord,
    TurnRequest,
    TurnsSampled,
)
from marlaas.stack import servers
from tests.support.scheduler.finished import StagesWithBlobs, settled
from tests.support.scheduler.stages import World, running_world, scored, spec
from tests.support.waiting import at_work, eventually_equals

CANARY = "canary-7d1f"
FAILING = 1
"""A group of each task fails with the canary as its reason."""


def planted(**changes: Any) -> dict[str, Any]:
    """A task with the canary in its name, its environment and its sampling."""
    environment = {
        "name": "toy",
        "options": {CANARY: [CANARY]},
        "rank_weights": {CANARY: 0.0},
        "tools": [{"name": "x", "options": {"a": CANARY}}],
    }
    evaluation = {"every": 2, "prompts": 1, "options": {CANARY: CANARY}}
    base: dict[str, Any] = {
        "environment": environment,
        "sampling": {"stop": [CANARY]},
        "keep": {"batches": 2},
        "evaluation": evaluation,
        "steps": 6,
    }
    return spec(**{"name": CANARY, **base, **changes})


@dataclass
class Planting(StagesWithBlobs):
    """Stages with the canary in prompts, replies, states, reward components, failures and blobs of all tasks but those of `clean`."""

    clean: Sequence[str] = ()

    async def open(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        group = delivery.read(OpenGroup).group
        if group.task not in self.clean:
            yield _prompts(group)
            yield _replies(group)
        if group.task in self.clean or group.group != FAILING:
            async for out in super().open(delivery):
                yield out
        else:
            for member in range(group.size):
                yield scored(group, member, reward=0.0, failure=f"the environment raised {CANARY}")

    async def train(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        self.content = "nothing" if delivery.subject.rpartition(".")[2] in self.clean else CANARY
        async for out in super().train(delivery):
            yield out


def _prompts(group: GroupContext) -> Outgoing:
    request = TurnRequest(
        member=0, turn=0, transcript=TokenRecord(), messages=[ChatMessage(role="user", content=CANARY)], state=CANARY.encode()
    )
    message = SampleTurns(group=group, members=[request])
    return Outgoing(streams.sample(group.pool, group.task, group.trajectory(0)), message, f"{group.task}:{group.group}:prompts")


def _replies(group: GroupContext) -> Outgoing:
    turn = SampledTurn(member=0, turn=0, transcript=TokenRecord(), reply=CANARY, finish="stop", state=CANARY.encode())
    message = TurnsSampled(group=group, members=[turn])
    return Outgoing(streams.turn(group.family, group.task, group.trajectory(0)), message, f"{group.task}:{group.group}:replies")


async def _take(delivery: Delivery) -> AsyncIterator[Outgoing]:
    return
    yield  # makes this an async generator


@asynccontextmanager
async def planting_world(bus: Bus, database_url: str, folder: Path, clean: Sequence[str]) -> AsyncIterator[World]:
    """A world whose stages plant the canary, except in the tasks `clean`; a task `live` waits for its members."""
    made = Planting(
        blobs=Blobs(bus),
        folder=folder / "made",
        clean=clean,
        components=lambda group, member: {CANARY: 1.0},
        withheld=lambda group, member: group.task == "live",
    )
    async with running_world(bus, database_url, made) as world, AsyncExitStack() as others:
        for consumer in (streams.rollout_samples("tiny"), streams.env_turns("toy")):
            await others.enter_async_context(at_work(bus.consume(consumer, _take, Slots(64))))
        yield world


async def leave_in_queues(world: World, task: str) -> None:
    """Store a message about the task in every queue, where none of these services takes it."""
    for subject in (streams.sample("none", task, "0-0"), streams.turn("none", task, "0-0"), streams.batch("none", task)):
        await world.bus.publish_raw(subject, b"nothing", f"left:{subject}", {})


def letter(task: str) -> Outgoing:
    """A message of the task that could not be handled."""
    subject = streams.turn("toy", task, "0-0")
    message = DeadLetter(stage="turn", subject=subject, reason=CANARY, attempts=1, headers={"x": CANARY}, body=CANARY.encode(), sequence=1)
    return Outgoing(streams.failed("turn", task), message, f"letter:{task}")


async def plant_letter(world: World, task: str) -> None:
    await world.bus.publish(letter(task))
    await world.rows_become(f"SELECT count(*) FROM dead_letters WHERE task = '{task}'", [(1,)])


async def everything_published(world: World) -> None:
    """Wait until the services have taken all messages from the queues."""
    await settled(world)
    for consumer in (streams.rollout_samples("tiny"), streams.env_turns("toy"), streams.trainer_batches("tiny")):
        await eventually_equals(lambda consumer=consumer: world.bus.streams.subjects(streams_of(consumer), consumer.subject), {})


def streams_of(consumer: streams.Consumer) -> streams.Stream:
    return next(stream for stream in streams.STREAMS if stream.name == consumer.stream)


def in_streams(folder: Path, canary: str = CANARY) -> set[str]:
    """Streams with the canary in the bytes of their files; `folder`: where NATS keeps its data."""
    assert (folder / servers.STORE).is_dir(), "what is not searched has no canary either"
    found: set[str] = set()
    for file in folder.rglob("*"):
        try:
            if file.is_file() and canary.encode() in file.read_bytes():
                path = file.parts
                found.add(path[path.index("streams") + 1] if "streams" in path else str(file))
        except FileNotFoundError:  # NATS removes files meanwhile
            continue
    return found


async def in_tables(world: World, canary: str = CANARY) -> set[str]:
    """Tables with the canary in a row, bytes included."""
    names = [name for (name,) in await world.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]
    found: set[str] = set()
    for name in names:
        async with world.database.transaction() as tx:
            statement = text(f'SELECT 1 FROM "{name}" t WHERE strpos(t::text, :plain) > 0 OR strpos(t::text, :hex) > 0 LIMIT 1')
            if (await tx.connection.execute(statement, {"plain": canary, "hex": canary.encode().hex()})).first():
                found.add(name)
    return found
