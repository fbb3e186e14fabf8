"""PostgreSQL or NATS restored to an older backup: the divergence is detected, reported and reconciled."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import make_url, select

from common import streams
from common.bus import Bus
from common.errors import Fatal, Retry
from common.messages import HistoryMark, TaskStatus
from common.streams import BLOBS_BUCKET
from marlaas.client import Client
from marlaas.stack import servers
from scheduler_svc.base.database import Database
from scheduler_svc.base.tables import tasks
from scheduler_svc.doctor.database_rules import examine_database
from scheduler_svc.doctor.stream_rules import ANNOUNCED, LETTERS, ORPHANS, SCORES, STATUS, examine_streams, read_recorded
from scheduler_svc.reconcile import accept
from scheduler_svc.training.queries import steps
from scheduler_svc.training.queries import tasks as task_queries
from scheduler_svc.training.termination import void_live_groups
from scheduler_svc.upkeep import outbox
from scheduler_svc.upkeep.outbox import HighWaterMark, OutboxRelay, Relayed
from tests.scheduler.maintenance.progress import trained
from tests.support.buses import HASTY
from tests.support.postgres import as_role
from tests.support.scheduler.stages import Stages, World, running_world, spec
from tests.support.servers import running
from tests.support.waiting import eventually, eventually_equals

OURS = Relayed("ours", 7)
STEPS = 30
"""Steps of a task: too many to finish before its scheduler stops."""


@pytest.mark.parametrize(
    ("relayed", "mark", "last_given", "expected"),
    [
        (Relayed("ours", 0), None, 0, None),
        (OURS, HistoryMark(deployment="ours", position=7), 7, None),
        (OURS, HistoryMark(deployment="ours", position=9), 9, None),  # published, and still in the outbox
        (OURS, HistoryMark(deployment="ours", position=10), 9, "PostgreSQL is older than NATS: it wrote 9 rows"),
        (OURS, HistoryMark(deployment="ours", position=6), 9, "NATS is older than PostgreSQL: it has the outbox up to 6, and 7"),
        (OURS, None, 9, "NATS has no mark of this deployment"),
        (Relayed("ours", 0), HistoryMark(deployment="theirs", position=3), 0, "NATS belongs to deployment theirs"),
    ],
)
def test_marks_show_which_store_is_older(relayed: Relayed, mark: HistoryMark | None, last_given: int, expected: str | None) -> None:
    found = outbox.disagreement(relayed, mark, last_given)
    assert (found is None) if expected is None else (found is not None and found.startswith(expected))


def dump(url: str, to: Path) -> None:
    _run("pg_dump", "--format=custom", f"--file={to}", as_role(url, servers.OWNER).replace("+psycopg", ""))


def restored(url: str, dumped: Path) -> str:
    """URL of a new database with the dump's content."""
    name = f"{make_url(url).database}_restored"
    port = make_url(url).port
    assert port is not None
    servers.create_database(port, name)
    new = servers.database_url(port, name, role=servers.ADMIN)
    _run("pg_restore", "--exit-on-error", f"--dbname={new.replace('+psycopg', '')}", str(dumped))
    return servers.database_url(port, name)


def _run(program: str, *arguments: str) -> None:
    subprocess.run([servers.postgres_binary(program), *arguments], check=True, capture_output=True, timeout=250)


async def refuses_to_start(database_url: str, bus: Bus) -> str:
    """Divergence that a starting scheduler reports; it waits."""
    async with await Database.connect(database_url) as database:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(outbox.wait_for_one_history(database, bus, recheck_s=0.1), 1.0)
        found = await outbox.compare(database, bus)
        assert found is not None
        return found


async def store_checkpoints(bus: Bus, database: Database) -> None:
    """Store the blobs that the stages of these tests only name."""
    store = await bus.blobs_context().object_store(BLOBS_BUCKET)
    async with database.transaction() as tx:
        for checkpoint in (await tx.connection.execute(select(tasks.c.checkpoint).where(tasks.c.checkpoint.is_not(None)))).scalars():
            await store.put(checkpoint["name"], b"x")


async def broken_rules(world: World, bus: Bus) -> list[str]:
    async with world.database.transaction() as tx:
        found = await examine_database(tx.connection)
        recorded = await read_recorded(tx.connection, grace_s=0)
    rules = (ORPHANS, SCORES, ANNOUNCED, STATUS, LETTERS)
    return [str(each) for each in [*found, *await examine_streams(bus, recorded)] if each in found or each.rule in rules]


async def becomes_healthy(world: World, bus: Bus) -> None:
    """Wait until messages in flight are handled and the doctor finds no violation."""
    await eventually_equals(lambda: broken_rules(world, bus), [])


async def test_database_restored_to_an_older_backup_is_detected_and_tasks_resume_from_it(
    bus: Bus, nats_url: str, database_url: str, tmp_path: Path
) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.submit("a", spec(steps=STEPS, algorithm={"group_size": 2, "groups_per_step": 2, "max_staleness": 1}))
        await trained(world, "a", 2)
    dump(database_url, tmp_path / "monday.dump")
    async with running_world(bus, database_url, Stages()) as world, Client.connect(nats_url) as client:
        await world.run("b", spec("lost", tenant="other"))
        await trained(world, "a", 1 + max(batch.version for batch in world.stages.batches))
    url = restored(database_url, tmp_path / "monday.dump")
    assert "PostgreSQL is older than NATS" in await refuses_to_start(url, bus)

    async with await Database.connect(url) as database:
        await store_checkpoints(bus, database)
        status = await bus.kv.get(streams.TASKS_BUCKET, "a", TaskStatus)
        assert status is not None
        await bus.kv.put(streams.TASKS_BUCKET, "a", status.model_copy(update={"state": "finished"}))  # its state had it continued
        done = await accept(database, bus)
        assert done is not None
        assert (done.unknown, done.paused) == (["b"], {})
        assert await bus.kv.get(streams.TASKS_BUCKET, "a", TaskStatus) is None
        assert await accept(database, bus) is None
    stages = Stages()
    async with running_world(bus, url, stages) as world, Client.connect(nats_url) as client:
        [(version,)] = await world.rows("SELECT version FROM tasks")
        await eventually(lambda: len(stages.batches) > 0)
        assert stages.batches[0].version == version < STEPS
        await trained(world, "a", STEPS)
        assert [batch.version for batch in stages.batches] == list(range(version, STEPS))
        await becomes_healthy(world, bus)
        assert [status.task for status in await client.tasks()] == ["a"]


async def test_task_whose_checkpoint_is_gone_is_paused_with_the_reason(bus: Bus, database_url: str, tmp_path: Path) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.submit("a", spec(steps=STEPS))
        await trained(world, "a", 2)
    dump(database_url, tmp_path / "monday.dump")
    async with running_world(bus, database_url, Stages()) as world:
        await trained(world, "a", (await world.rows("SELECT version FROM tasks"))[0][0] + 2)
    async with await Database.connect(restored(database_url, tmp_path / "monday.dump")) as database:
        done = await accept(database, bus)
        assert done is not None
        assert "is not in the blob store of NATS" in done.paused["a"]


@asynccontextmanager
async def nats_on(folder: Path, port: int, log: Path) -> AsyncIterator[Bus]:
    with running(servers.nats_command(folder, port, sync="1s"), port, log):
        async with await Bus.connect(servers.nats_url(port), "test", timings=HASTY) as bus:
            await bus.declare()
            yield bus


async def test_withdrawn_step_leaves_none_of_its_groups_to_the_next(bus: Bus, database_url: str) -> None:
    stages = Stages(trains=False)
    async with running_world(bus, database_url, stages) as world:
        await world.begin("a", batches=1)
        async with world.database.transaction() as tx:
            [task] = await task_queries.lock_tasks(tx.connection, ["a"])
            await void_live_groups(tx.connection, task, "restored")
            await steps.withdraw_steps(tx.connection, "a")
        await world.rows_become("SELECT state FROM steps", [("batched",)])
        [batch] = stages.batches
        assert await world.rows("SELECT state, count(*) FROM groups WHERE step = 0 GROUP BY state") == [("batched", len(batch.groups))]


async def test_nats_restored_to_an_older_backup_or_emptied_is_detected_and_tasks_resume(database_url: str, tmp_path: Path) -> None:
    port, log = servers.free_port(), tmp_path / "nats.log"
    async with nats_on(tmp_path / "nats", port, log) as bus, running_world(bus, database_url, Stages()) as world:
        await world.submit("a", spec(steps=STEPS))
        await trained(world, "a", 2)
    shutil.copytree(tmp_path / "nats", tmp_path / "backup")
    async with nats_on(tmp_path / "nats", port, log) as bus, running_world(bus, database_url, Stages()) as world:
        await trained(world, "a", (await world.rows("SELECT version FROM tasks"))[0][0] + 2)
    async with nats_on(tmp_path / "empty", port, log) as bus:
        assert "NATS has no mark of this deployment" in await refuses_to_start(database_url, bus)
    async with nats_on(tmp_path / "backup", port, log) as bus:
        assert "NATS is older than PostgreSQL" in await refuses_to_start(database_url, bus)
        async with await Database.connect(database_url) as database:
            await store_checkpoints(bus, database)
            done = await accept(database, bus)
            assert done is not None
            assert (done.paused, done.unknown) == ({}, [])
            assert set(done.voided) == {"a"}  # their number depends on when the scheduler stopped
        async with running_world(bus, database_url, Stages()) as world:
            await trained(world, "a", STEPS)
            await becomes_healthy(world, bus)


async def test_running_scheduler_ends_when_histories_diverge(bus: Bus, database: Database) -> None:
    await bus.kv.put(streams.HISTORY_BUCKET, outbox.HISTORY_KEY, HistoryMark(deployment="another", position=3))
    with pytest.raises(Fatal, match="NATS belongs to deployment another"):
        await OutboxRelay(database, bus).run()


async def test_mark_of_a_relay_that_lost_its_lock_is_rejected_and_marks_never_decrease(bus: Bus) -> None:
    lost, holder = await HighWaterMark.read(bus, "ours"), await HighWaterMark.read(bus, "ours")
    await holder.write(9)
    with pytest.raises(Retry, match="another process"):
        await lost.write(7)
    await (await HighWaterMark.read(bus, "ours")).write(8)
    assert await bus.kv.get(streams.HISTORY_BUCKET, outbox.HISTORY_KEY, HistoryMark) == HistoryMark(deployment="ours", position=9)
