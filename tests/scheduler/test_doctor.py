"""The doctor against real PostgreSQL and NATS: a clean record is clean, and each rule, once broken, is named."""

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from common import streams
from common.blobs import Blobs
from common.bus import Bus, Delivery, Outgoing
from common.messages import BlobRef, DeadLetter, OpenGroup, TaskStatus, TrainBatch
from scheduler_svc.cleaning import SPACING_S, Cleaner
from scheduler_svc.database import Database
from scheduler_svc.doctor import messages, record, stored
from scheduler_svc.doctor.examination import Depth, examine
from scheduler_svc.doctor.finding import Finding
from tests.conftest import eventually
from tests.scheduler.stages import Stages, World, running_world, scored, spec, updated
from tests.scheduler.test_life_of_a_task import control

WAITING = {streams.scored("live", member) for member in ("4-0", "5-0", "5-1", "6-0", "6-1", "7-0", "7-1")}
STRICT = Depth(grace_s=0, deep=True, second_look_s=4 * SPACING_S)
"""Enough for what steps have just made old to be deleted in between."""


@dataclass
class StagesWithBlobs(Stages):
    """A trainer whose adapters and checkpoints are really stored."""

    blobs: Blobs | None = None
    folder: Path = field(default_factory=Path)

    async def train(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        batch = delivery.read(TrainBatch)
        self.batches.append(batch)
        if (batch.task, batch.version) == ("live", 1):
            # A straggler of version 1 holds up version 2. Opened later it would be of version 2, and a step could leave without it.
            await eventually(lambda: any((group.task, group.group) == ("live", 4) for group in self.opened), 60)
        if self.trains:
            kinds = ("adapter", "checkpoint", *(["batch"] if batch.spec.keep.batches else []))
            stored = await self.store(batch.task, batch.version + 1, kinds=kinds)
            made = updated(batch)
            message: Any = made.message
            adapter = message.adapter.model_copy(update={"blob": stored["adapter"]})
            yield replace(made, message=message.model_copy(update=stored | {"adapter": adapter}))

    async def store(
        self, task: str, version: int, content: str = "", kinds: Sequence[str] = ("adapter", "checkpoint")
    ) -> dict[str, BlobRef]:
        refs: dict[str, BlobRef] = {}
        for kind in kinds:
            folder = self.folder / hashlib.sha256(f"{task} {version} {kind} {content}".encode()).hexdigest()
            folder.mkdir(exist_ok=True)
            (folder / "content").write_text(f"{task} {version} {kind} {content}")
            assert self.blobs is not None
            refs[kind] = await self.blobs.put_folder(f"{task}.v{version}.{kind}", folder)
        return refs


def stages(bus: Bus, folder: Path, **hooks: Any) -> StagesWithBlobs:
    return StagesWithBlobs(blobs=Blobs(bus), folder=folder, **hooks)


async def settled(world: World) -> None:
    """The outbox is empty, so that what was told is what is stored."""

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


async def test_clean_run_with_failures_and_a_cancelled_task_is_clean(bus: Bus, database_url: str, tmp_path: Path) -> None:
    made = stages(
        bus,
        tmp_path,
        failure=lambda group, member: "sandbox died" if (group.task, group.group, member) == ("a", 1, 0) else None,
        withheld=lambda group, member: group.task == "stuck",
    )
    async with running_world(bus, database_url, made) as world:
        await world.submit("a", spec(steps=5))
        await world.submit("stuck", spec(tenant="other"))
        await eventually(lambda: any(group.task == "stuck" for group in made.opened))
        await world.event("a", "finished")
        await settled(world)
        await clean(world)  # with one task live
        await bus.publish(control("cancel", "stuck", tenant="other"))
        await world.event("stuck", "cancelled", tenant="other")
        await settled(world)
        await clean(world)


# ------------------------------------------------------------------------------------------------- PostgreSQL's rules


BROKEN_BY: dict[str, str] = {
    "every admitted group has its row, numbered from 0": "DELETE FROM groups WHERE task = 'a' AND number = 5",
    "every group has one trajectory for each member": "DELETE FROM trajectories WHERE task = 'a' AND \"group\" = 0 AND member = 1",
    "void groups are counted once": "UPDATE tasks SET voided = voided + 1 WHERE id = 'a'",
    "an ended task has no trajectory that is neither trained nor void": """
        UPDATE trajectories SET state = 'scored' WHERE task = 'a' AND "group" = 0 AND member = 0""",
    "an ended task has no group that is neither trained nor void": "UPDATE groups SET state = 'batched' WHERE task = 'a' AND number = 0",
    "a trajectory's state agrees with its group's": "UPDATE groups SET state = 'ready' WHERE task = 'live' AND number = 0",
    "an open group waits for at least one member": """
        UPDATE trajectories SET state = 'scored', reward = 0, sequence = 1000 + member WHERE task = 'live' AND state = 'open'""",
    "an overdue group is void within a minute": """
        UPDATE groups SET deadline_at = now() - interval '1 hour', admitted_at = now() - interval '2 hours'
        WHERE task = 'live' AND state = 'open'""",
    "a task's version is the number of its trained steps": "DELETE FROM steps WHERE task = 'a' AND version = 1",
    "trained steps are contiguous from 0, and at most one more was sent": "UPDATE steps SET version = 7 WHERE task = 'a' AND version = 2",
    "a step of an ended task is trained or void, one of a live task is not void": "UPDATE tasks SET state = 'running' WHERE id = 'failed'",
    "a finished task trained every step, or says what stopped it": "UPDATE tasks SET steps = steps + 1 WHERE id = 'a'",
    "an evaluation is over when all of its groups are": "UPDATE evaluations SET state = 'running' WHERE task = 'a' AND version = 3",
    "an ended task has no evaluation under way, and is told of each that finished": """
        DELETE FROM events WHERE task = 'a' AND event = 'evaluation' AND (data ->> 'version')::int = 0""",
    "the ledger has what each evaluation consumed, and nothing else": """
        UPDATE ledger SET tokens = tokens + 1 WHERE task = 'a' AND kind = 'evaluation' AND number = 1000000000""",
    "a step has as many groups as its task says, in the step's own state": "UPDATE groups SET step = 2 WHERE task = 'a' AND number = 0",
    "a trained or batched group belongs to a step that is there": "UPDATE groups SET step = 9 WHERE task = 'a' AND number = 0",
    "nothing trained or waiting is staler than its task allows": "UPDATE groups SET version = version - 2 WHERE task = 'a' AND number = 4",
    "a scored message is one group's, and names each member once": """
        UPDATE trajectories SET sequence = (SELECT min(sequence) FROM trajectories WHERE task = 'a') WHERE task = 'failed'""",
    "a step's numbers are those of its trajectories": "UPDATE steps SET reward = reward + 0.01 WHERE task = 'a' AND version = 0",
    "the ledger has what each settled group consumed, and nothing else": """
        DELETE FROM ledger WHERE kind = 'sampled' AND task = 'a' AND number = 0""",
    "the ledger has each trained step once, and nothing else": "DELETE FROM ledger WHERE kind = 'trained' AND task = 'a' AND number = 2",
    "a task's totals are what the ledger has of it": "UPDATE tasks SET booked_tokens = booked_tokens - 1 WHERE id = 'a'",
    "what is booked is booked to the task's tenant": "UPDATE ledger SET tenant = 'other' WHERE task = 'a' AND kind = 'trained'",
    "a task's adapter and checkpoint are its last trained step's": "UPDATE tasks SET checkpoint = NULL WHERE id = 'a'",
    "a trained step's adapter is its own task's and version's": """
        UPDATE steps SET adapter = jsonb_set(adapter, '{task}', '"live"') WHERE task = 'a' AND version = 0""",
    "each step, and each task's end, was told once": "DELETE FROM events WHERE task = 'a' AND event = 'finished'",
    "no message waits in the outbox for more than a minute": """
        INSERT INTO outbox (subject, message_id, headers, body, created_at)
        VALUES ('events.acme.a', 'x', '{}', '', now() - interval '1 hour')""",
}


async def test_each_rule_of_the_record_is_named_when_it_is_broken(bus: Bus, database_url: str, tmp_path: Path) -> None:
    assert set(BROKEN_BY) == set(record.RULES), "a rule without a test, or a test without its rule"
    made = stages(bus, tmp_path, withheld=lambda group, member: group.task == "live" and member == 1)
    async with running_world(bus, database_url, made) as world:
        await world.submit("a", spec(evaluation={"every": 3, "prompts": 2}))
        await world.submit("live", spec(tenant="other"))
        await world.event("a", "finished")
        made.trains = False
        await world.submit("failed")
        await eventually(lambda: any(batch.task == "failed" for batch in made.batches))
        letter = DeadLetter(stage="train", subject="x", reason="loss is NaN", attempts=1, headers={}, body=made.batches[-1].encode())
        await bus.publish(Outgoing(streams.failed("train", "failed"), letter, "letter"))
        await world.event("failed", "failed")
        await eventually(lambda: any(group.task == "live" for group in made.opened))
        await settled(world)
    assert await broken_rules(database_url, "SELECT 1") == []
    for rule, statement in BROKEN_BY.items():
        found = await broken_rules(database_url, statement)
        assert rule in {finding.rule for finding in found}, rule
        assert all("task=" in finding.where or "subject=" in finding.where for finding in found if finding.rule == rule)


async def broken_rules(database_url: str, statement: str) -> list[Finding]:
    """What the doctor finds after `statement`, which is then undone."""
    database = await Database.connect(database_url)
    try:
        async with database.transaction() as connection:
            outer = await connection.begin_nested()
            await connection.execute(text(statement))
            found = await record.examine_record(connection)
            await outer.rollback()
            return found
    except DBAPIError as error:  # says which statement, for whoever adds a constraint
        raise AssertionError(f"{statement}: {error.orig}") from error
    finally:
        await database.close()


# ------------------------------------------------------------------------------------------------------- NATS's rules


Breaking = Callable[[World, StagesWithBlobs], Awaitable[None]]


async def leave_a_message_of_an_ended_task(world: World, made: StagesWithBlobs) -> None:
    await world.bus.publish(replace(scored(made.opened[0], 0, reward=1.0), message_id="late"))


async def leave_a_message_of_an_unknown_task(world: World, made: StagesWithBlobs) -> None:
    group = made.opened[0].model_copy(update={"task": "nobody"})
    await world.bus.publish(Outgoing(streams.open_group("elsewhere", "nobody", 0), OpenGroup(group=group), "x"))


async def lose_a_scored_message(world: World, made: StagesWithBlobs) -> None:
    await world.bus.purge(streams.SCORED, "trajectories.scored.live.>")


async def announce_other_weights(world: World, made: StagesWithBlobs) -> None:
    await world.bus.purge(streams.WEIGHTS, "weight-updated.tiny.a")
    other = updated(made.batches[0])
    await world.bus.publish(replace(other, message_id="other"))


async def lose_an_announcement(world: World, made: StagesWithBlobs) -> None:
    await world.bus.purge(streams.WEIGHTS, "weight-updated.tiny.live")


async def say_something_else_to_users(world: World, made: StagesWithBlobs) -> None:
    status = await world.bus.get_value(streams.TASKS_BUCKET, "a", TaskStatus)
    assert status is not None
    await world.bus.put_value(streams.TASKS_BUCKET, "a", status.model_copy(update={"state": "running"}))


async def forget_a_dead_letter(world: World, made: StagesWithBlobs) -> None:
    letter = DeadLetter(stage="open", subject="x", reason="y", attempts=1, headers={}, body=b"")
    await world.bus.publish(Outgoing(streams.failed("open", "a"), letter, "letter"))

    async def recorded() -> bool:
        return await world.rows("SELECT count(*) FROM dead_letters") == [(1,)]

    await eventually(recorded)
    async with world.database.transaction() as connection:
        await connection.execute(text("DELETE FROM dead_letters"))


async def lose_an_adapter(world: World, made: StagesWithBlobs) -> None:
    [name] = [name for name in await Blobs(world.bus).names() if name.startswith("a.v1.adapter")]
    await Blobs(world.bus).delete(name)


async def lose_the_content_of_blobs(world: World, made: StagesWithBlobs) -> None:
    await world.bus.blobs_context().purge_stream("OBJ_blobs", subject="$O.blobs.C.>")


async def leave_a_blob_of_a_step_taken_twice(world: World, made: StagesWithBlobs) -> None:
    await made.store("a", 1, "other bits")


async def change_a_digest(world: World, made: StagesWithBlobs) -> None:
    async with world.database.transaction() as connection:
        for table in ("steps", "tasks"):
            await connection.execute(
                text(f"UPDATE {table} SET adapter = jsonb_set(adapter, '{{blob,sha256}}', '\"{'0' * 64}\"') WHERE version = 3")
            )
        await connection.execute(
            text("UPDATE steps SET adapter = (SELECT adapter FROM tasks WHERE id = 'a') WHERE task = 'a' AND version = 2")
        )


NATS_RULES: list[tuple[str, Breaking]] = [
    (messages.ORPHANS, leave_a_message_of_an_ended_task),
    (messages.ORPHANS, leave_a_message_of_an_unknown_task),
    (messages.SCORES, lose_a_scored_message),
    (messages.WEIGHTS, announce_other_weights),
    (messages.ANNOUNCED, lose_an_announcement),
    (messages.STATUS, say_something_else_to_users),
    (messages.LETTERS, forget_a_dead_letter),
    (stored.MISSING, lose_an_adapter),
    (stored.MISSING, lose_the_content_of_blobs),
    (stored.ORPHANS, leave_a_blob_of_a_step_taken_twice),
    (stored.DAMAGED, change_a_digest),
]


@pytest.mark.parametrize(("rule", "break_it"), NATS_RULES, ids=[breaking.__name__ for _, breaking in NATS_RULES])
async def test_each_rule_about_nats_is_named_when_it_is_broken(
    rule: str, break_it: Breaking, bus: Bus, database_url: str, tmp_path: Path
) -> None:
    made = stages(bus, tmp_path, withheld=lambda group, member: group.task == "live" and group.group == 4 and member == 1)
    async with running_world(bus, database_url, made) as world:
        await world.submit("a")
        await world.event("a", "finished")
        await world.submit("live", spec(tenant="other", steps=9))
        await waiting_for_a_member(world)
        await clean(world)  # what ended is deleted by then, and would not be again
        await break_it(world, made)
        assert rule in await sentences(world)


def test_every_rule_about_nats_has_a_test() -> None:
    assert {rule for rule, _ in NATS_RULES} == {*messages.RULES, *stored.RULES}


# --------------------------------------------------------------------------------------------------- sweep and process


async def test_sweep_deletes_what_nothing_needs_and_nothing_else(bus: Bus, database_url: str, tmp_path: Path) -> None:
    made = stages(bus, tmp_path, withheld=lambda group, member: group.task == "live" and group.group == 4 and member == 1)
    async with running_world(bus, database_url, made) as world:
        await world.submit("a")
        await world.event("a", "finished")
        await world.submit("live", spec(tenant="other", steps=9))
        await waiting_for_a_member(world)
        await clean(world)  # what ended or grew old is deleted by then
        before = sorted(await Blobs(bus).names())
        await made.store("live", 99)  # a step that may be on its way
        await leave_a_blob_of_a_step_taken_twice(world, made)
        await leave_a_message_of_an_ended_task(world, made)
        await leave_a_message_of_an_unknown_task(world, made)
        await Cleaner(world.database, bus, sweep_s=60).sweep()
        await clean(world)
        assert sorted(name for name in await Blobs(bus).names() if ".v99." not in name) == before
        assert len([name for name in await Blobs(bus).names() if ".v99." in name]) == 2
        assert set(await bus.subjects(streams.SCORED)) >= WAITING


async def test_blobs_of_a_task_are_kept_by_its_own_policy(bus: Bus, database_url: str, tmp_path: Path) -> None:
    """After each step, not only by the sweep; and the doctor asks for exactly these."""
    keep = {"checkpoints": 1, "every": 3, "adapters": "checkpoints", "batches": 2}
    async with running_world(bus, database_url, stages(bus, tmp_path)) as world:
        await world.submit("a", spec(steps=8, keep=keep))
        await world.event("a", "finished")
        expected = {f"a.v{v}.{kind}" for v in (3, 6, 8) for kind in ("adapter", "checkpoint")} | {"a.v7.batch", "a.v8.batch"}
        # Engines may still be asked for the last max_staleness + 2 versions.
        expected |= {"a.v7.adapter"}

        async def cleaned() -> bool:
            return {name.rpartition("-")[0] for name in await Blobs(bus).names()} == expected

        await eventually(cleaned)
        await clean(world)
        await Blobs(bus).delete(next(name for name in await Blobs(bus).names() if name.startswith("a.v3.checkpoint")))
        assert await sentences(world) == [stored.MISSING]


async def test_process_says_what_is_wrong_and_how_it_ended(bus: Bus, nats_url: str, database_url: str, tmp_path: Path) -> None:
    async def doctor(*options: str, **changes: str) -> tuple[int, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("MARLAAS_")}
        env |= {"MARLAAS_NATS_URL": nats_url, "MARLAAS_SCHEDULER_DATABASE_URL": database_url} | changes
        argv = [sys.executable, "-m", "scheduler_svc.doctor", *options]
        done = await asyncio.to_thread(subprocess.run, argv, env=env, capture_output=True, text=True, timeout=250)
        return done.returncode, done.stdout + done.stderr

    async with running_world(bus, database_url, stages(bus, tmp_path)) as world:
        await world.submit("a")
        await world.event("a", "finished")
        await settled(world)
    status, said = await doctor("--deep")
    assert (status, "rules that were looked at hold" in said, "BROKEN" in said) == (0, True, False)
    await bus.publish(Outgoing(streams.open_group("x", "nobody", 0), OpenGroup(group=world.stages.opened[0]), "x"))
    status, said = await doctor()
    assert status == 1
    assert f"BROKEN    {messages.ORPHANS}\n            stream=PROMPTS subject=prompts.open.x.nobody.0" in said
    status, said = await doctor("--json")
    assert (status, said.count('"rule"')) == (1, 1)
    status, said = await doctor(MARLAAS_NATS_URL="nats://127.0.0.1:1")
    assert (status, said) == (2, "doctor: NATS does not answer; correct MARLAAS_NATS_URL\n")
