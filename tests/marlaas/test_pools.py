"""`marlaas pools` and its verbs, by NATS and through a gateway, against the real scheduler."""

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from common.accelerators import Function
from common.accelerators import trace as traces
from common.accelerators.trace import ENVIRONMENT, Task, Trace
from common.bus import Bus
from tests.marlaas.verbs import Run, out
from tests.support.marlaas.command import MARLAAS
from tests.support.paths import ROOT
from tests.support.scheduler.finished import stages
from tests.support.scheduler.shared_accelerator import SHARED
from tests.support.scheduler.stages import World, running_world
from tests.support.waiting import at_work, eventually

ROWS = """
INSERT INTO accelerators (id, spec) VALUES ('a', '{}');
INSERT INTO executors (accelerator, id, pool, service, state, tier, device_bytes, answered_at) VALUES
    ('a', 'rollout-tiny', 'tiny', 'rollout', 'parked', 'host', 8589934592, now()),
    ('a', 'trainer-tiny', 'tiny', 'trainer', 'parked', 'host', 1, now()),
    ('a', 'rollout-other', 'other', 'rollout', 'awake', 'device', 1, now());
INSERT INTO slices (accelerator, epoch, executor, pool, function, reason, tasks, expected_s, from_tier, ordered_at, awake_at, ended_at,
    ended, booked_at, switch_ms, busy_ms, idle_ms) VALUES ('a', 1, 'rollout-other', 'other', 'generate', 'ratio', '{}', 1, 'host',
    '2030-01-02 03:04:05', '2030-01-02 03:04:06', '2030-01-02 03:04:10', 'switched', now(), 1000, 3500, 500);
INSERT INTO slice_shares (accelerator, epoch, task, ms) VALUES ('a', 1, '', 5000);
INSERT INTO moves (accelerator, executor, epoch, from_tier, to_tier, bytes, seconds)
    VALUES ('a', 'trainer-tiny', 1, 'host', 'device', 1, 0.25);
INSERT INTO pool_clocks (pool, parked_since) VALUES ('tiny', now()) ON CONFLICT (pool) DO UPDATE SET parked_since = now()
"""


@pytest.fixture
async def world(bus: Bus, database_url: str, tmp_path: Path) -> AsyncGenerator[World]:
    """Groups of the task `held` never end."""
    made = stages(bus, tmp_path / "made", withheld=lambda group, member: True)
    async with running_world(bus, database_url, made, pools=SHARED) as world:
        for statement in ROWS.split(";\n"):
            await world.execute(statement)
        yield world


def rows(text: str) -> list[list[str]]:
    """Cells of a table, without its header."""
    return [line.split() for line in text.splitlines()[1:]]


async def test_pools_show_executors_and_slices_with_who_paid(world: World, run: Run) -> None:
    said = await out(run("pools"))
    models, executors = said.split("\n\n")
    assert {row[0] for row in rows(models)} == {"tiny", "other"}
    found = {row[1]: row for row in rows(executors)}
    assert found["rollout-tiny"][2:4] == ["parked", "host"] and "~1.10" in found["rollout-tiny"]
    assert found["trainer-tiny"][-2:] == ["0.25", "s"], "measured"
    assert found["rollout-other"][2:4] == ["awake", "device"]
    [one] = rows(await out(run("pools", "slices", "--since", "1h")))
    assert one[:2] == ["2030-01-02", "03:04:05"]
    assert one[-11:] == ["ratio", "1.00", "s", "3.50", "s", "0.50", "s", "switched", "none", "5.00", "s"]
    assert "is no duration" in (await run("pools", "slices", "--since", "soon")).stderr


async def test_why_and_ps_say_what_a_parked_pool_waits_for(world: World, run: Run) -> None:
    await world.run("held", until="accepted")
    await eventually(lambda: len(world.stages.opened) > 0)
    away = r"environment: its \d+ open groups are with environment 'toy', the oldest for \d+ s; nothing of its pool is to be sampled\n"
    assert re.fullmatch(away, await out(run("why", "held")))
    assert "accelerator" not in await out(run("ps"))
    await world.execute("UPDATE executors SET ready_since = now() WHERE id = 'rollout-tiny'")
    said = await out(run("why", "held"))
    assert said == "accelerator: pool 'tiny' waits for its accelerator 'a', about 1 s\n"
    assert "waits for its accelerator, about 1 s" in await out(run("ps"))
    await world.execute("UPDATE executors SET state = 'awake', tier = 'device' WHERE id = 'rollout-tiny'")
    assert not (await out(run("why", "held"))).startswith("accelerator")
    assert "accelerator" not in await out(run("ps"))


async def test_operators_park_drain_wake_and_release(world: World, run: Run) -> None:
    for verb, held in (("park", "park"), ("drain", "drain"), ("wake", "wake"), ("release", None)):
        assert await out(run("pools", verb, "tiny")) == f"{verb}: a/rollout-tiny, a/trainer-tiny\n"
        assert {row.held for row in await world.rows("SELECT held FROM executors WHERE pool = 'tiny'")} == {held}
        if verb == "wake":
            await out(run("pools", "wake", "other"))
            assert await world.rows("SELECT held FROM executors WHERE pool = 'other'") == [(None,)], "it is awake"
        assert await world.rows("SELECT held FROM executors WHERE pool = 'other'") == [(None,)]
    await out(run("pools", "park", "tiny"))
    await world.run("held", until="accepted")
    await eventually(lambda: len(world.stages.opened) > 0)
    await world.execute("UPDATE executors SET ready_since = now() WHERE id = 'rollout-tiny'")
    assert "`marlaas pools release tiny` lifts it" in await out(run("why", "held"))
    unknown = await run("pools", "park", "large")
    assert unknown.returncode == 1 and "no pool 'large' shares an accelerator" in unknown.stderr
    elsewhere = await run("pools", "park", "tiny", "--accelerator", "b")
    assert "on accelerator 'b'" in elsewhere.stderr
    audited = await world.rows("SELECT verb, target, outcome, detail FROM audit WHERE verb = 'move-pool' ORDER BY id")
    assert [(row.target, row.outcome) for row in audited] == [("tiny", "accepted")] * 3 + [("other", "accepted")] + [
        ("tiny", "accepted")
    ] * 2 + [("", "refused")]
    assert audited[0].detail == {"pool": "tiny", "verb": "park"}


@asynccontextmanager
async def measuring(world: World) -> AsyncGenerator[list[tuple[str, str]]]:
    """In place of the leader: whoever is ordered to, and has no fault, was parked in the tier and woken. Executors and tiers."""
    done: list[tuple[str, str]] = []

    async def lead() -> None:
        while True:
            ordered = "SELECT id, measured FROM executors WHERE held = 'wake' AND measured IS NOT NULL AND fault IS NULL"
            for row in await world.rows(ordered):
                done.append((row.id, row.measured))
                for between, seconds in (("'device', '{}'", 0.5), ("'{}', 'device'", 0.75)):
                    moved = f"'a', '{row.id}', 2, {between.format(row.measured)}, 1, {seconds}"
                    columns = "accelerator, executor, epoch, from_tier, to_tier, bytes, seconds"
                    await world.execute(f"INSERT INTO moves ({columns}) VALUES ({moved})")
                woken = "state = 'awake', tier = 'device', held = NULL, measured = NULL, answered_at = now()"
                await world.execute(f"UPDATE executors SET {woken} WHERE id = '{row.id}'")
            await asyncio.sleep(0.05)

    async with at_work(lead()):
        yield done


async def test_calibration_goes_through_the_tiers_of_each_executor_and_lists_its_moves(world: World, run: Run) -> None:
    await world.execute("UPDATE executors SET held = 'park' WHERE id = 'rollout-other'")
    async with measuring(world) as done:
        said = (await out(run("pools", "calibrate"))).splitlines()
    tiers = ("device", "host", "disk")
    assert done == [(name, tier) for name in ("rollout-tiny", "trainer-tiny") for tier in tiers], "the other is held"
    assert said[0].startswith("2 executors are parked and woken 6 times. Running tasks wait meanwhile and lose nothing")
    assert said[2:5] == [
        "round 1: rollout-tiny on a, device: there 0.625 s, back 0.625 s, medians of 2 and 2",
        "round 1: rollout-tiny on a, host: there 0.500 s, back 0.750 s, medians of 1 and 1",
        "round 1: rollout-tiny on a, disk: there 0.500 s, back 0.750 s, medians of 1 and 1",
    ]
    assert said[-1].split()[:5] == ["a", "trainer-tiny", "host", "device", "2"]
    assert await out(run("pools", "moves")) == "\n".join(said[-11:]) + "\n"


async def test_calibration_reports_what_cannot_wake_and_goes_on(world: World, run: Run) -> None:
    await world.execute("UPDATE executors SET faults = 1, fault = 'canary differs' WHERE id = 'rollout-tiny'")
    await world.execute("UPDATE executors SET held = 'drain' WHERE id = 'rollout-other'")
    async with measuring(world) as done:
        failed = await run("pools", "calibrate", "--rounds", "2")
    assert (failed.returncode, failed.stderr) == (1, "round 1: rollout-tiny on a: it could not wake: canary differs\n")
    assert done == [("trainer-tiny", tier) for _ in range(2) for tier in ("device", "host", "disk")]
    assert "round 2: trainer-tiny on a, disk: " in failed.stdout
    held = await world.rows("SELECT id FROM executors WHERE held IS NOT NULL OR measured IS NOT NULL")
    assert [row.id for row in held] == ["rollout-other"], "what could not wake is not ordered for ever"


async def test_trace_is_of_steps_and_measured_moves(world: World, run: Run, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (await out(run("pools", "trace"))).splitlines()]
    assert {(line["kind"], line["executor"]) for line in lines} == {
        ("executor", "rollout-other"), ("executor", "rollout-tiny"), ("executor", "trainer-tiny"), ("move", "trainer-tiny"),
    }  # fmt: skip


async def test_plan_of_a_stack_leaves_no_file_behind(world: World, nats_url: str, tmp_path: Path) -> None:
    """It becomes another program, which reads the trace of all tenants."""
    (folder := tmp_path / "temporary").mkdir()
    argv, env = [MARLAAS, "pools", "plan", "--url", nats_url], {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    done = await asyncio.to_thread(subprocess.run, argv, cwd=folder, env=env, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (
        1,
        "marlaas: the trace has no step of any task; train some steps in each pool, by tasks as they usually are, and plan after that\n",
    ), "it was read"
    assert list(folder.iterdir()) == []


def test_plan_of_a_trace_needs_no_stack(tmp_path: Path) -> None:
    step = ((Function.GENERATE, 2.0), (ENVIRONMENT, 15.0), (Function.TRAIN, 1.0))
    tasks = tuple(Task(f"task-{pool}", "acme", pool, 0.0, (step,) * 3) for pool in ("a", "b"))
    traces.write(tmp_path / "trace.jsonl", Trace((), tasks))
    argv = [MARLAAS, "pools", "plan", "--trace", "trace.jsonl"]
    done = subprocess.run(argv, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert "share a, b: " in done.stdout and "place task-a on accelerator 1" in done.stdout
