"""The doctor against real PostgreSQL and NATS: sound stores have no violation, and each broken rule is reported."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from common import streams
from common.blobs import Blobs
from common.bus import Bus, Outgoing
from common.messages import OpenGroup
from scheduler_svc.base.database import Database
from scheduler_svc.doctor import blob_rules, database_rules, stream_rules
from scheduler_svc.doctor.runner import RULES, Depth
from scheduler_svc.doctor.violation import Violation
from scheduler_svc.upkeep.deletion.garbage_collector import GarbageCollector
from tests.scheduler.doctor import database_breakages, mutations, store_breakages
from tests.scheduler.doctor.store_breakages import Change
from tests.support.scheduler.finished import QUIESCENT, WAITING, Finished, broken_rules, clean, copied, finish, settled, stages, store
from tests.support.scheduler.stages import running_world, spec
from tests.support.services import without_settings
from tests.support.waiting import eventually


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def finished(postgres_port: int, migrated_database: str, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return await finish(postgres_port, migrated_database, tmp_path_factory.mktemp("finished"))


@pytest.fixture(scope="module")
def shared_url(finished: Finished) -> str:
    """URL of a database that tests share; each undoes its changes."""
    return finished.database()


def test_every_rule_has_a_test() -> None:
    assert {*database_breakages.VIOLATIONS, *(rule for rule, _ in store_breakages.VIOLATIONS)} == set(RULES)


async def test_run_with_failures_and_a_cancelled_task_violates_no_rule(bus: Bus, database_url: str, tmp_path: Path) -> None:
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
        await world.control("cancel", "stuck", tenant="other", until="cancelled")
        await settled(world)
        await clean(world)


async def test_finished_world_violates_no_rule(finished: Finished, tmp_path: Path) -> None:
    async with copied(finished, tmp_path) as world:
        assert await broken_rules(world, QUIESCENT) == []


# --------------------------------------------------------------------------------------------------------- broken rules


@pytest.mark.parametrize("rule", database_breakages.VIOLATIONS)
async def test_violation_in_the_database_is_reported(rule: str, shared_url: str) -> None:
    for statement in database_breakages.VIOLATIONS[rule]:
        found = [violation for violation in await violations_after(shared_url, statement) if violation.rule == rule]
        assert found, statement
        assert all(any(name in violation.where for name in ("task=", "subject=", "accelerator=")) for violation in found)


async def test_statement_that_keeps_a_rule_is_not_reported(shared_url: str) -> None:
    for rule, statements in database_breakages.COMPLIANT.items():
        for statement in statements:
            assert rule not in {violation.rule for violation in await violations_after(shared_url, statement)}, statement


async def violations_after(database_url: str, statement: str) -> list[Violation]:
    """Violations that the doctor finds after `statement`, which is then undone."""
    try:
        async with await Database.connect(database_url) as database, database.transaction() as tx:
            outer = await tx.connection.begin_nested()
            for one in statement.split("; "):  # a prepared statement is one
                await tx.connection.execute(text(one))
            found = await database_rules.examine_database(tx.connection)
            await outer.rollback()
            return found
    except DBAPIError as error:  # names the statement, for the author of a constraint
        raise AssertionError(f"{statement}: {error.orig}") from error


@pytest.mark.parametrize(("rule", "change"), store_breakages.VIOLATIONS, ids=[change.__name__ for _, change in store_breakages.VIOLATIONS])
async def test_violation_in_nats_is_reported(rule: str, change: Change, finished: Finished, tmp_path: Path) -> None:
    async with copied(finished, tmp_path) as world:
        await change(world)
        assert rule in await broken_rules(world, QUIESCENT)


@pytest.mark.parametrize(
    ("rule", "change", "depth"), store_breakages.COMPLIANT, ids=[each[1].__name__ for each in store_breakages.COMPLIANT]
)
async def test_change_that_keeps_a_rule_about_nats_is_not_reported(
    rule: str, change: Change, depth: Depth, finished: Finished, tmp_path: Path
) -> None:
    async with copied(finished, tmp_path) as world:
        await change(world)
        assert rule not in await broken_rules(world, depth)


@pytest.mark.slow
async def test_every_mutant_is_caught_or_equivalent_and_docs_have_the_counts(finished: Finished, tmp_path: Path) -> None:
    counts = await mutations.every_mutant(finished, tmp_path)
    assert mutations.unexpected(counts) == []
    page = mutations.PAGE.read_text()
    assert mutations.written(page, mutations.table(counts)) == page, "python -m tests.scheduler.doctor.mutations --write"


# --------------------------------------------------------------------------------------------------- sweep and process


async def test_sweep_deletes_only_unneeded_messages_and_blobs(finished: Finished, tmp_path: Path) -> None:
    async with copied(finished, tmp_path) as world:
        blobs = Blobs(world.bus)
        before = sorted(await blobs.names())
        await store(blobs, tmp_path, "live", 99)  # a step whose announcement may be in flight
        await store_breakages.leave_a_blob_of_a_step_taken_twice(world)
        await store_breakages.leave_a_message_of_an_ended_task(world)
        await store_breakages.leave_a_message_of_an_unknown_task(world)
        assert await broken_rules(world, QUIESCENT) == sorted({stream_rules.ORPHANS, blob_rules.ORPHANS})
        await GarbageCollector(world.database, world.bus, sweep_s=60).sweep()
        assert await broken_rules(world, QUIESCENT) == []
        assert sorted(name for name in await blobs.names() if ".v99." not in name) == before
        assert len([name for name in await blobs.names() if ".v99." in name]) == 2
        assert set(await world.bus.streams.subjects(streams.SCORED)) >= WAITING


async def test_blobs_of_a_task_are_kept_by_its_own_policy(bus: Bus, database_url: str, tmp_path: Path) -> None:
    """Superseded blobs are deleted after each step, not only by the sweep; the doctor requires exactly the others."""
    keep = {"checkpoints": 1, "every": 3, "adapters": "checkpoints", "batches": 2}
    async with running_world(bus, database_url, stages(bus, tmp_path)) as world:
        await world.run("a", spec(steps=8, keep=keep))
        expected = {f"a.v{v}.{kind}" for v in (3, 6, 8) for kind in ("adapter", "checkpoint")} | {"a.v7.batch", "a.v8.batch"}
        # Engines may still be asked for the last max_staleness + 2 versions.
        expected |= {"a.v7.adapter"}

        async def cleaned() -> bool:
            return {name.rpartition("-")[0] for name in await Blobs(bus).names()} == expected

        await eventually(cleaned)
        await clean(world)
        await Blobs(bus).delete(next(name for name in await Blobs(bus).names() if name.startswith("a.v3.checkpoint")))
        assert await broken_rules(world) == [blob_rules.MISSING]


async def test_process_prints_violations_and_exits_with_a_status(finished: Finished, tmp_path: Path) -> None:
    async with copied(finished, tmp_path) as world:

        async def doctor(*options: str, **changes: str) -> tuple[int, str]:
            env = without_settings()
            env |= {"MARLAAS_NATS_URL": world.nats_url, "MARLAAS_SCHEDULER_DATABASE_URL": world.database_url} | changes
            argv = [sys.executable, "-m", "scheduler_svc.doctor", *options]
            done = await asyncio.to_thread(subprocess.run, argv, env=env, capture_output=True, text=True, timeout=250)
            return done.returncode, done.stdout + done.stderr

        status, printed = await doctor("--deep", "--strict")
        assert (status, "examined rules hold" in printed, "BROKEN" in printed) == (0, True, False)
        await world.bus.publish(Outgoing(streams.open_group("x", "unknown", 0), OpenGroup(group=finished.opened[0]), "x"))
        (status, printed), (as_json_status, as_json), (absent_status, absent) = await asyncio.gather(
            doctor(), doctor("--json"), doctor("--timeout-s", "5", MARLAAS_NATS_URL="nats://127.0.0.1:1")
        )
        assert status == 1
        assert f"BROKEN    {stream_rules.ORPHANS}\n            stream=PROMPTS subject=prompts.open.x.unknown.0" in printed
        assert (as_json_status, as_json.count('"rule"')) == (1, 1)
        assert (absent_status, absent) == (2, "doctor: NATS does not answer; correct MARLAAS_NATS_URL\n")
