"""Finished world for the doctor's tests: made once, then copied, PostgreSQL as a template and NATS as a folder.

Task `a` and its evaluations finished, `failed` lost a step, `stuck` was cancelled, `refused` was rejected, `sent`
waits for its first step, and `live` at version 2 for a member of its group 4. No service runs, so that only tests
change it.
"""

import hashlib
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common import streams
from common.blobs import Blobs
from common.bus import Bus, Delivery, Outgoing
from common.messages import BlobRef, CheckEnvironment, DeadLetter, GroupContext, TrainBatch
from marlaas.stack import servers
from scheduler_svc.base.database import Database
from scheduler_svc.doctor.runner import Depth, examine
from scheduler_svc.upkeep.deletion.garbage_collector import SPACING_S, GarbageCollector
from tests.support.postgres import as_role, copied_database, database_copy
from tests.support.scheduler.stages import Stages, World, running_world, spec, updated
from tests.support.scheduler.statements import Queried
from tests.support.servers import running
from tests.support.waiting import eventually, eventually_equals

WAITING = {streams.scored("live", member) for member in ("4-0", "5-0", "5-1", "6-0", "6-1", "7-0", "7-1")}
STRICT = Depth(grace_s=0, deep=True, second_look_s=4 * SPACING_S)
"""Examines twice, far enough apart for superseded blobs to be deleted in between."""
QUIESCENT = Depth(grace_s=0, deep=True, second_look_s=0)
LONG = {"episode_timeout_s": 86_400}
"""Limits of a task whose groups are never late."""


@dataclass
class StagesWithBlobs(Stages):
    """Stages whose trainer stores adapters and checkpoints."""

    blobs: Blobs | None = None
    folder: Path = field(default_factory=Path)
    content: str = ""
    """Text in every blob."""
    untrained: Sequence[str] = ()
    """Tasks whose batches the trainer ignores."""

    async def check(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        self.objection = "no such toy" if delivery.read(CheckEnvironment).task == "refused" else None
        async for out in super().check(delivery):
            yield out

    async def train(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        batch = delivery.read(TrainBatch)
        self.batches.append(batch)
        if (batch.task, batch.version) == ("live", 1):
            # A straggler of version 1 holds up version 2. Opened later it would be of version 2, and a step could leave without it.
            await eventually(lambda: any((group.task, group.group) == ("live", 4) for group in self.opened))
        if batch.task not in self.untrained:
            kinds = ("adapter", "checkpoint", *(["batch"] if batch.spec.keep.batches else []))
            stored = await self.store(batch.task, batch.version + 1, self.content, kinds)
            made = updated(batch, metrics=self.metrics(batch.version + 1))
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
    """Store blobs of a version, by kind, named as a trainer names them; other content gives other names."""
    refs: dict[str, BlobRef] = {}
    for kind in kinds:
        source = folder / hashlib.sha256(f"{task} {version} {kind} {content}".encode()).hexdigest()
        source.mkdir(parents=True, exist_ok=True)
        (source / "content").write_text(f"{task} {version} {kind} {content}")
        refs[kind] = await blobs.put_folder(f"{task}.v{version}.{kind}", source)
    return refs


def stages(bus: Bus, folder: Path, **hooks: Any) -> StagesWithBlobs:
    return StagesWithBlobs(blobs=Blobs(bus), folder=folder, **hooks)


def is_slow(group: GroupContext, member: int) -> bool:
    """Whether the group's task is one of those whose groups never end: its id begins with `slow`."""
    return group.task.startswith("slow")


def is_withheld(group: GroupContext, member: int) -> bool:
    return group.task == "stuck" or (group.task == "live" and group.group == 4 and member == 1)


async def settled(world: World) -> None:
    """Wait until the outbox is empty: every message is stored in NATS."""
    await world.rows_become("SELECT count(*) FROM outbox", [(0,)])


async def waiting_for_a_member(world: World) -> None:
    """Wait until `live`, which lacks a member of group 4, is at version 2 and has sampled all that its bound allows."""
    scored = "SELECT version, (SELECT count(*) FROM trajectories WHERE task = 'live' AND state = 'scored') FROM tasks WHERE id = 'live'"
    await world.rows_become(scored, [(2, len(WAITING))])
    await settled(world)


async def broken_rules(world: "World | Copy", depth: Depth = STRICT) -> list[str]:
    """Rules that the doctor reports as broken; prints the violations."""
    found = await examine(world.database, world.bus, depth)
    print(*found, sep="\n")
    return sorted({violation.rule for violation in found})


async def clean(world: World) -> None:
    """Wait until the doctor finds no violation; a slow machine may delete superseded blobs later than STRICT allows."""
    await eventually_equals(lambda: broken_rules(world), [])


@dataclass(frozen=True)
class Finished:
    """Source of the copies."""

    postgres_port: int
    template: str
    nats: Path
    opened: list[GroupContext]
    batches: list[TrainBatch]

    def database(self) -> str:
        """URL of a copy of the database, for the owner of the schema: tests change there what the scheduler may not."""
        return as_role(copied_database(self.postgres_port, self.template), servers.OWNER)


@dataclass(frozen=True)
class Copy(Queried):
    """Copied servers, without services."""

    bus: Bus
    database: Database
    made: Finished
    folder: Path
    nats_url: str
    database_url: str


async def finish(postgres_port: int, migrated: str, folder: Path) -> Finished:
    """Run all tasks to their final states, then stop."""
    url, port = copied_database(postgres_port, migrated), servers.free_port()
    with running(servers.nats_command(folder / "nats", port, sync="1s"), port, folder / "nats.log"):
        async with await Bus.connect(servers.nats_url(port), "test") as bus:
            await bus.declare()
            made = stages(bus, folder / "made", withheld=is_withheld, untrained=("failed", "sent"))
            async with running_world(bus, url, made) as world:
                await _play(world, made)
                await GarbageCollector(world.database, bus, sweep_s=60).sweep()  # messages that arrived after their task's end
                await bus.publish_raw(streams.serve("tiny", "a", "r1"), b"{}", "serve:r1", {})  # versions of ended tasks are served
                await clean(world)
    return Finished(postgres_port, url.rpartition("/")[2], folder / "nats", made.opened, made.batches)


async def _play(world: World, made: StagesWithBlobs) -> None:
    await world.run("a", spec(evaluation={"every": 3, "prompts": 2, "protocol": [{"name": "greedy"}, {"name": "other", "seed": 1}]}))
    await world.submit("live", spec(tenant="other", steps=9, limits=LONG))
    await waiting_for_a_member(world)
    await world.submit("failed")
    await eventually(lambda: any(batch.task == "failed" for batch in made.batches))
    lost, body = streams.batch("tiny", "failed"), made.batches[-1].encode()
    letter = DeadLetter(stage="train", subject=lost, reason="loss is NaN", attempts=1, headers={}, body=body, sequence=1)
    await world.bus.publish(Outgoing(streams.failed("train", "failed"), letter, "letter"))
    await world.event("failed", "failed")
    await world.submit("sent", spec(limits=LONG))

    # All that its bound allows, of which half is in flight to the trainer.
    await world.rows_become("SELECT count(*) FROM trajectories WHERE task = 'sent' AND state = 'scored'", [(8,)])
    await eventually(lambda: any(batch.task == "sent" for batch in made.batches))
    await world.submit("stuck", spec(limits=LONG))
    await eventually(lambda: any(group.task == "stuck" for group in made.opened))
    await world.control("cancel", "stuck", until="cancelled")
    await world.run("refused", until="rejected")
    await settled(world)


@asynccontextmanager
async def copied(made: Finished, folder: Path) -> AsyncIterator[Copy]:
    """A copy of the world on its own servers, until the block ends."""
    shutil.copytree(made.nats, folder / "nats")
    port = servers.free_port()
    with (
        database_copy(made.postgres_port, made.template) as copy,
        running(servers.nats_command(folder / "nats", port, sync="1s"), port, folder / "nats.log"),
    ):
        nats_url, database_url = servers.nats_url(port), as_role(copy, servers.OWNER)
        async with await Bus.connect(nats_url, "test") as bus, await Database.connect(database_url) as database:
            yield Copy(bus, database, made, folder, nats_url, database_url)
