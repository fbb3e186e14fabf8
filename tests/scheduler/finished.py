"""A world at rest that tests of the doctor break: made once, then copied, PostgreSQL as a template and NATS as a folder.

Task `a` and its evaluations finished, `failed` lost a step, `stuck` was cancelled, `refused` was rejected, `sent`
waits for its first step, and `live` at version 2 for a member of its group 4. No service runs any more, so nothing
changes but what a test changes.
"""

import hashlib
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sqlalchemy import text

from common import streams
from common.blobs import Blobs
from common.bus import Bus, Delivery, Outgoing
from common.messages import BlobRef, CheckEnvironment, DeadLetter, GroupContext, TrainBatch
from marlaas.stack import servers
from scheduler_svc.doctor.runner import Depth, examine
from scheduler_svc.maintenance.garbage_collector import SPACING_S, GarbageCollector
from scheduler_svc.store.database import Database
from tests.conftest import copied_database, eventually, running
from tests.scheduler.stages import Stages, World, running_world, spec, updated
from tests.scheduler.test_life_of_a_task import control

WAITING = {streams.scored("live", member) for member in ("4-0", "5-0", "5-1", "6-0", "6-1", "7-0", "7-1")}
STRICT = Depth(grace_s=0, deep=True, second_look_s=4 * SPACING_S)
"""Enough for what steps have just made old to be deleted in between."""
AT_REST = Depth(grace_s=0, deep=True, second_look_s=0)
LONG = {"episode_timeout_s": 86_400}
"""Limits of a task whose groups are not late however long the tests take."""


@dataclass
class StagesWithBlobs(Stages):
    """A trainer whose adapters and checkpoints are really stored."""

    blobs: Blobs | None = None
    folder: Path = field(default_factory=Path)
    untrained: Sequence[str] = ()
    """Tasks whose batches the trainer leaves alone."""

    async def check(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        self.objection = "no such toy" if delivery.read(CheckEnvironment).task == "refused" else None
        async for out in super().check(delivery):
            yield out

    async def train(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        batch = delivery.read(TrainBatch)
        self.batches.append(batch)
        if (batch.task, batch.version) == ("live", 1):
            # A straggler of version 1 holds up version 2. Opened later it would be of version 2, and a step could leave without it.
            await eventually(lambda: any((group.task, group.group) == ("live", 4) for group in self.opened), 60)
        if batch.task not in self.untrained:
            kinds = ("adapter", "checkpoint", *(["batch"] if batch.spec.keep.batches else []))
            stored = await self.store(batch.task, batch.version + 1, kinds=kinds)
            made = updated(batch)
            message: Any = made.message
            adapter = message.adapter.model_copy(update={"blob": stored["adapter"]})
            yield replace(made, message=message.model_copy(update=stored | {"adapter": adapter}))

    async def store(
        self, task: str, version: int, content: str = "", kinds: Sequence[str] = ("adapter", "checkpoint")
    ) -> dict[str, BlobRef]:
        assert self.blobs is not None
        return await store(self.blobs, self.folder, task, version, content, kinds)


async def store(
    blobs: Blobs, folder: Path, task: str, version: int, content: str = "", kinds: Sequence[str] = ("adapter", "checkpoint")
) -> dict[str, BlobRef]:
    """Blobs of a version by kind, as a trainer names them; other content gives them other names."""
    refs: dict[str, BlobRef] = {}
    for kind in kinds:
        source = folder / hashlib.sha256(f"{task} {version} {kind} {content}".encode()).hexdigest()
        source.mkdir(parents=True, exist_ok=True)
        (source / "content").write_text(f"{task} {version} {kind} {content}")
        refs[kind] = await blobs.put_folder(f"{task}.v{version}.{kind}", source)
    return refs


def stages(bus: Bus, folder: Path, **hooks: Any) -> StagesWithBlobs:
    return StagesWithBlobs(blobs=Blobs(bus), folder=folder, **hooks)


def is_withheld(group: GroupContext, member: int) -> bool:
    return group.task == "stuck" or (group.task == "live" and group.group == 4 and member == 1)


async def settled(world: World) -> None:
    """The outbox is empty, so that what was announced is what is stored."""

    async def empty() -> bool:
        return await world.rows("SELECT count(*) FROM outbox") == [(0,)]

    await eventually(empty)


async def waiting_for_a_member(world: World) -> None:
    """Task `live`, of whose group 4 a member never comes, is at version 2 and has sampled all that its bound allows."""

    async def stuck() -> bool:
        waiting = await world.rows("SELECT count(*) FROM trajectories WHERE task = 'live' AND state = 'scored'")
        return waiting == [(len(WAITING),)] and await world.rows("SELECT version FROM tasks WHERE id = 'live'") == [(2,)]

    await eventually(stuck, 60)
    await settled(world)


async def sentences(world: World, depth: Depth = STRICT) -> list[str]:
    """The rules that the doctor finds broken, and breaks the test's silence about where."""
    found = await examine(world.database, world.bus, depth)
    for finding in found:
        print(finding)
    return sorted({finding.rule for finding in found})


async def clean(world: World) -> None:
    """The doctor finds nothing any more; a slow machine may take longer than STRICT waits to delete what has just become old."""

    async def nothing_is_found() -> bool:
        return await sentences(world) == []

    await eventually(nothing_is_found)


@dataclass(frozen=True)
class Finished:
    """What the copies are made of."""

    postgres_port: int
    template: str
    nats: Path
    opened: list[GroupContext]
    batches: list[TrainBatch]

    def database(self) -> str:
        """URL of a copy of the record."""
        return copied_database(self.postgres_port, self.template)


@dataclass(frozen=True)
class Copy:
    """Servers that no service talks to, holding all that was left."""

    bus: Bus
    database: Database
    made: Finished
    folder: Path
    nats_url: str
    database_url: str

    async def execute(self, statement: str) -> None:
        async with self.database.transaction() as tx:
            await tx.connection.execute(text(statement))


async def finish(postgres_port: int, migrated: str, folder: Path) -> Finished:
    """Play all tasks to where they rest, then stop."""
    url, port = copied_database(postgres_port, migrated), servers.free_port()
    with running(servers.nats_command(folder / "nats", port, sync="1s"), port, folder / "nats.log"):
        bus = await Bus.connect(servers.nats_url(port), "test")
        try:
            await bus.declare()
            made = stages(bus, folder / "made", withheld=is_withheld, untrained=("failed", "sent"))
            async with running_world(bus, url, made) as world:
                await _play(world, made)
                await GarbageCollector(world.database, bus, sweep_s=60).sweep()  # messages that arrived after their task had ended
                await clean(world)
        finally:
            await bus.close()
    return Finished(postgres_port, url.rpartition("/")[2], folder / "nats", made.opened, made.batches)


async def _play(world: World, made: StagesWithBlobs) -> None:
    await world.submit("a", spec(evaluation={"every": 3, "prompts": 2}))
    await world.event("a", "finished")
    await world.submit("live", spec(tenant="other", steps=9, limits=LONG))
    await waiting_for_a_member(world)
    await world.submit("failed")
    await eventually(lambda: any(batch.task == "failed" for batch in made.batches))
    letter = DeadLetter(stage="train", subject="x", reason="loss is NaN", attempts=1, headers={}, body=made.batches[-1].encode())
    await world.bus.publish(Outgoing(streams.failed("train", "failed"), letter, "letter"))
    await world.event("failed", "failed")
    await world.submit("sent", spec(limits=LONG))

    async def sampled() -> bool:
        """All that its bound allows, of which half is on its way to the trainer."""
        return await world.rows("SELECT count(*) FROM trajectories WHERE task = 'sent' AND state = 'scored'") == [(8,)]

    await eventually(sampled)
    await eventually(lambda: any(batch.task == "sent" for batch in made.batches))
    await world.submit("stuck", spec(limits=LONG))
    await eventually(lambda: any(group.task == "stuck" for group in made.opened))
    await world.bus.publish(control("cancel", "stuck"))
    await world.event("stuck", "cancelled")
    await world.submit("refused")
    await world.event("refused", "rejected")
    await settled(world)


@asynccontextmanager
async def copied(made: Finished, folder: Path) -> AsyncIterator[Copy]:
    """The world again, on servers of its own, until the block ends."""
    shutil.copytree(made.nats, folder / "nats")
    port = servers.free_port()
    with running(servers.nats_command(folder / "nats", port, sync="1s"), port, folder / "nats.log"):
        nats_url, database_url = servers.nats_url(port), made.database()
        bus = await Bus.connect(nats_url, "test")
        database = await Database.connect(database_url)
        try:
            yield Copy(bus, database, made, folder, nats_url, database_url)
        finally:
            await database.close()
            await bus.close()
