"""Every verb of the command line against the real scheduler, with a test as environment, sampler and trainer."""

import asyncio
import json
import subprocess
import time
import tomllib
from collections.abc import AsyncGenerator
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import make_url

from common.bus import Bus
from common.messages import GroupContext
from common.messages.prompts import FIRST_EVALUATION_GROUP as FIRST_GROUP
from common.spec import parse_spec
from marlaas.stack.control import make_plan
from marlaas.stack.os_processes import identify
from marlaas.stack.state_files import Component, Stack, locked, write_stack
from tests.marlaas.verbs import TASK, Run, out
from tests.support.marlaas.command import MARLAAS, complaint, marlaas
from tests.support.paths import EXAMPLES
from tests.support.samples import keep, kept_attempt, step_samples
from tests.support.scheduler.dead_letters import dead_letter, recorded
from tests.support.scheduler.finished import clean, settled, stages
from tests.support.scheduler.stages import World, running_world, scored
from tests.support.waiting import eventually


@pytest.fixture
async def world(bus: Bus, database_url: str, tmp_path: Path) -> AsyncGenerator[World]:
    """Groups of the task `held` never end."""
    (tmp_path / "task.toml").write_text(TASK)
    made = stages(bus, tmp_path / "made", withheld=lambda group, member: group.task == "held")
    async with running_world(bus, database_url, made) as world:
        yield world


async def test_submit_watch_ps_status_envs_and_pull(world: World, run: Run, address: str, tmp_path: Path) -> None:
    assert await out(run("ps")) == "no tasks yet; submit one with `marlaas submit task.toml`\n"

    async def is_listed() -> bool:
        return (await run("envs")).stdout == "toy\n"

    await eventually(is_listed)
    first, *watched = (await out(run("submit", "task.toml", "--id", "mine", "--watch"))).splitlines()
    assert first == "tenant 'acme' is new: this task has made it"
    assert [line.split()[2] for line in watched] == ["accepted", "step", "step", "step", "finished"]
    argv = ["bash", "-c", f"{MARLAAS} watch mine --url {address} | head -1"]
    done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, cwd=tmp_path)
    assert (done.stderr, done.stdout.count(b"\n")) == (b"", 1), "it ends with its reader"
    await settled(world)
    for command in "ps", "status":
        [row] = [line for line in (await out(run(command))).splitlines() if "mine" in line]
        assert "finished" in row
    shown = (await out(run("show", "mine"))).splitlines()
    assert ["version", "3", "of", "3"] in [line.split() for line in shown]
    assert "version 3 of mine, rank 8" in await out(run("pull", "mine"))
    assert (tmp_path / "mine.v3" / "content").read_text() == "mine 3 adapter "
    assert "version 2 of mine" in await out(run("pull", "mine", "--version", "2", "--to", "older"))
    assert (tmp_path / "older" / "content").read_text() == "mine 2 adapter "
    assert "task mine has no version 7" in complaint(await run("pull", "mine", "--version", "7"))


@pytest.mark.parametrize("options", [(), ("--dry-run",)], ids=["submitted", "dry run"])
async def test_rejection_has_every_reason_at_once(world: World, run: Run, tmp_path: Path, options: tuple[str, ...]) -> None:
    wrong = TASK.replace('"tiny"', '"huge"').replace("steps = 3", "steps = 0").replace('"toy"', '"absent"')
    (tmp_path / "task.toml").write_text(f"{wrong}lora.rnk = 4\n")
    await eventually(lambda: world.scheduler._replicas.families == {"toy"})
    _, *reasons = complaint(await run("submit", "task.toml", *options)).splitlines()
    assert sorted(reason.split()[0] for reason in reasons) == ["environment.name:", "lora.rnk:", "pool:", "steps:"]
    assert "  steps: must be 1 or more, not 0" in reasons and "  pool: no pool 'huge' here; offered: tiny" in reasons


async def test_dry_run_prints_every_value_with_its_origin_and_submits_nothing(world: World, run: Run, tmp_path: Path) -> None:
    (tmp_path / "task.toml").write_text(TASK + 'sampling.stop = ["\\n", "\\u007f"]\n')
    printed = await out(run("submit", "task.toml", "--dry-run"))
    origins = {line.partition(" = ")[0]: line.rpartition("# ")[2] for line in printed.splitlines() if " = " in line}
    assert (origins["group_size"], origins["stop"], origins["rank"], origins["seed"]) == ("task", "task", "built-in", "built-in")
    assert parse_spec(tomllib.loads(printed)) == parse_spec(tomllib.loads((tmp_path / "task.toml").read_text()))
    (tmp_path / "task.toml").write_text(TASK + "lora.rank = 64\n")
    refused = await run("submit", "task.toml", "--dry-run")
    assert refused.returncode == 1
    assert refused.stderr == "would be rejected: lora.rank: 64 is above what pool 'tiny' allows: 16\n"
    assert await out(run("ps")) == "no tasks yet; submit one with `marlaas submit task.toml`\n"


async def test_pause_resume_and_cancel(world: World, run: Run) -> None:
    await out(run("submit", "task.toml", "--id", "held"))

    async def shows(state: str) -> None:
        async def is_shown() -> bool:
            return state in await out(run("ps"))

        await eventually(is_shown)

    async def waits_for_pace() -> bool:
        return await out(run("why", "held")) == "pace: its next step needs 2 more of its own groups; 4 are in flight\n"

    await shows("running")
    await eventually(waits_for_pace)
    assert await out(run("pause", "held", "--reason", "lunch")) == "pausing held\n"
    await shows("paused")
    assert "lunch" in await out(run("ps"))
    assert await out(run("resume", "held")) == "resuming held\n"
    await shows("running")
    assert await out(run("cancel", "held", "--reason", "enough")) == "cancelling held\n"
    watched = (await out(run("watch", "held"))).splitlines()
    assert [line.split(maxsplit=2)[2] for line in watched] == ["accepted", "paused", "resumed", "cancelled: enough"]
    await shows("cancelled")
    assert "there is nothing to pause" in complaint(await run("pause", "held"))
    assert await out(run("why", "held")) == "it is cancelled: it waits for nothing\n"
    assert "no task 'hold'; did you mean 'held'?" in complaint(await run("why", "hold"))


async def test_watch_without_ids_ends_with_the_tasks_that_run(world: World, run: Run, address: str, tmp_path: Path) -> None:
    await out(run("submit", "task.toml", "--id", "mine", "--watch"))
    await settled(world)
    assert "no task is running" in await out(run("watch"))
    await out(run("submit", "task.toml", "--id", "held"))
    watching = await asyncio.create_subprocess_exec(MARLAAS, "watch", "--url", address, cwd=tmp_path, stdout=subprocess.PIPE)
    assert watching.stdout is not None
    lines: list[str] = []

    async def read() -> None:
        async for line in watching.stdout or ():
            lines.append(line.decode())

    reading = asyncio.ensure_future(read())

    async def is_seen() -> bool:  # the process prints only events after its start
        await run("pause", "held")
        await run("resume", "held")
        return bool(lines)

    await eventually(is_seen)
    await out(run("cancel", "held"))
    await asyncio.wait_for(reading, 250)
    assert await watching.wait() == 0
    assert {line.split()[1] for line in lines} == {"held"}
    assert "accepted" not in lines[0]
    assert lines[-1].split()[2] == "cancelled:"


async def test_delete_prune_and_what_is_stored(world: World, run: Run) -> None:
    for task in ("held", "done", "old"):
        await out(run("submit", "task.toml", "--id", task))
    for task in ("done", "old"):
        await world.event(task, "finished")
    await settled(world)
    await clean(world)
    shown = {line.split()[0]: line for line in (await out(run("ps", "--wide"))).splitlines()}
    assert shown["done"].rstrip().endswith("51.2 kB")  # three adapters that may still sample, and two checkpoints
    assert shown["blob"].startswith("blob store: 10")  # with their names
    assert "end it first with `marlaas cancel held`" in complaint(await run("delete", "held"))
    assert "no task 'nothing'" in complaint(await run("delete", "nothing"))
    assert await out(run("delete", "done")) == "deleted done: 51.2 kB freed\n"
    assert "task done was deleted already" in complaint(await run("delete", "done"))
    assert await out(run("prune", "--dry-run")) == "0 B would be freed; nothing was deleted\n"
    both = "acme: {} 1 ended tasks, 51.2 kB: old\n{}\n"
    assert await out(run("prune", "--older-than", "0.001", "--dry-run")) == "0 B would be freed; nothing was deleted\n"
    await world.execute("UPDATE tasks SET ended_at = now() - interval '1 hour' WHERE id = 'old'")
    dry = await out(run("prune", "--older-than", "0.001", "--dry-run"))
    assert dry == both.format("would delete", "51.2 kB would be freed; nothing was deleted")
    assert await out(run("prune", "--older-than", "0.001")) == both.format("deleted", "51.2 kB freed")
    assert [line.split()[0] for line in (await out(run("ps"))).splitlines()[1:]] == ["held"]


async def test_failures_and_resend(world: World, run: Run) -> None:
    await out(run("submit", "task.toml", "--id", "held"))
    assert await out(run("failures", "held")) == "no dead letters\n"
    await eventually(lambda: world.stages.opened)
    letter = await dead_letter(world.bus, "settle", "held", scored(world.stages.opened[0], 0, reward=1.0))
    await recorded(world, 1)
    [row] = [line for line in (await out(run("failures"))).splitlines() if "disk full" in line]
    assert row.split()[0] == str(letter)
    assert await out(run("resend", str(letter))) == f"resent: the message of letter {letter}\n"
    await eventually(lambda: world.rows("SELECT 1 FROM trajectories WHERE task = 'held' AND state = 'scored'"))
    assert "there is no dead letter 99" in complaint(await run("resend", "99"))


async def test_status_pools_logs_psql_and_doctor_of_a_stack_on_this_machine(
    world: World, run: Run, nats_url: str, database_url: str, tmp_path: Path
) -> None:
    """A process on a data directory that names this world's servers; psql and doctor exec other programs, so they run in processes."""
    await out(run("submit", "task.toml", "--id", "mine", "--watch"))
    await settled(world)
    data, this = tmp_path / "stack", identify(1)
    assert this is not None
    (data / "logs").mkdir(parents=True)
    (data / "logs" / "nats.log").write_text("first\nlast\n")
    plan = make_plan(data, EXAMPLES.parent / "pools.toml", without_keys=True)
    env = {"MARLAAS_NATS_URL": nats_url, "MARLAAS_SCHEDULER_DATABASE_URL": database_url}
    (data / "plan.json").write_text(plan.model_copy(update={"prepare_env": env}).model_dump_json())
    ports = {"nats_port": int(nats_url.rpartition(":")[2]), "postgres_port": make_url(database_url).port or 0}
    nats = Component(name="nats", condition="ready", process=this, since_s=time.time())
    where = {"nats_url": nats_url, "database_url": database_url, "gateway": plan.gateway}
    state = Stack(supervisor=this, started_s=0, components=[nats], **where, **ports)

    async def process(*arguments: str) -> str:
        argv = [MARLAAS, *arguments, "--data", str(data)]
        done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=250)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    with locked(data):
        write_stack(data, state)
        shown = await out(asyncio.to_thread(marlaas, "status", "--data", str(data), cwd=tmp_path))
        assert "nats" in shown
        assert "mine" in shown
        assert "tiny" in await out(asyncio.to_thread(marlaas, "pools", "--data", str(data), cwd=tmp_path))
        assert await process("logs", "nats", "-n", "1") == "last\n"
        assert "finished" in await process("psql", "-c", "SELECT state FROM tasks")
        assert json.loads(await process("doctor", "--json")) == []


async def test_show_and_compare_read_what_evaluations_found(world: World, run: Run, tmp_path: Path) -> None:
    def reward(group: GroupContext, member: int) -> float:
        return float(group.task == "better" or group.row % 2) if group.group >= FIRST_GROUP else float(member)

    world.stages.reward = reward
    evaluation = 'evaluation = { every = 2, prompts = 20, protocol = [{ name = "greedy" }, { name = "second", seed = 1 }] }\n'
    for task, tenant in (("worse", "acme"), ("better", "acme"), ("other", "globex")):
        (tmp_path / f"{task}.toml").write_text(TASK.replace('"acme"', f'"{tenant}"') + evaluation)
        await out(run("submit", f"{task}.toml", "--id", task))
    await out(run("watch", "worse", "better", "other"))
    shown = await out(run("show", "worse"))
    assert "evaluation greedy  version 3: 0.500 (0.299 to 0.701); over version 0 +0.000" in shown
    assert "evaluation second" in shown
    said = (await out(run("compare", "worse", "better"))).splitlines()
    assert said[0] == "protocol greedy, 20 prompts in common"
    assert said[1] == "worse version 3: reward 0.500 (0.299 to 0.701), 20 prompts"
    assert said[2] == "better version 3: reward 1.000 (0.839 to 1.000), 20 prompts"
    assert (said[3].startswith("difference +0.500 ("), said[3].endswith("): better is better")) == (True, True)
    assert "protocol second" in await out(run("compare", "better", "worse", "--protocol", "second", "--version", "best"))
    refused = complaint(await run("compare", "worse", "better", "--version", "1"))
    assert refused == "marlaas: task worse: protocol 'greedy' has no version '1'; use best, last or one of 0, 2, 3\n"
    refused = complaint(await run("compare", "worse", "other"))
    assert refused == "marlaas: task worse is of tenant 'acme', other of 'globex'; compare tasks of one tenant\n"


async def test_prices_are_set_and_an_invoice_is_printed(world: World, run: Run) -> None:
    assert "usage costs nothing" in await out(run("prices", "list"))
    said = await out(run("prices", "set", "sampled", "2.50", "--per", "1000000"))
    assert said == "sampled: 2.50 per 1000000 in all pools without a price of their own, from now on\n"
    await out(run("prices", "set", "trained", "1", "--pool", "other", "--from", "2999-01-02"))
    listed = await out(run("prices", "list"))
    assert "2.50" in listed and "2999-01-02T00:00:00+00:00" in listed
    await world.run("a")
    [(sampled,)] = await world.rows("SELECT sum(tokens) FROM ledger WHERE kind = 'sampled'")
    lines = (await out(run("usage", "--csv", "--from", "2001-01-01"))).splitlines()
    assert lines[0] == "day,tenant,pool,kind,quantity,money"
    [line] = [line for line in lines if ",sampled," in line]
    assert line.split(",")[1:5] == ["acme", "tiny", "sampled", str(sampled)]
    assert Decimal(line.split(",")[5]) == sampled * Decimal("0.0000025")
    assert await out(run("usage", "--csv", "--to", "2001-01-01")) == lines[0] + "\n"
    assert "sampled" in await out(run("usage", "--from", "2001-01-01"))
    refused = await run("prices", "set", "sampled", "1", "--from", "2001-01-01")
    assert refused.returncode == 1 and "in the past" in refused.stderr
    assert (await run("prices", "set", "coffee", "1")).returncode == 2
    assert (await run("prices", "set", "sampled", "1", "--per", "7")).returncode == 2


async def test_budgets_are_set_listed_and_removed(world: World, run: Run) -> None:
    assert await out(run("budgets", "list")) == "no budgets\n"
    refused = await run("budgets", "set", "acme", "5")
    assert refused.returncode == 1 and "no tenant 'acme'" in refused.stderr
    await world.run("a")
    assert await out(run("budgets", "set", "acme", "12.50")) == "acme: 12.50 money a month\n"
    assert await out(run("budgets", "set", "acme", "1000000", "--unit", "tokens", "--per", "total")) == "acme: 1000000 tokens in all\n"
    [(spent,)] = await world.rows("SELECT paid_tokens FROM tasks")
    lines = [line.split() for line in (await out(run("budgets", "list"))).splitlines()]
    assert lines[1:] == [["acme", "month", "money", "12.50", "0", "0"], ["acme", "total", "tokens", "1000000", str(spent), "0"]]
    await out(run("budgets", "set", "acme", "none"))
    assert await world.rows("SELECT unit FROM budgets") == [("tokens",)]
    for wrong in (("acme", "much"), ("acme", "-1"), ("acme", "1", "--per", "week"), ("acme", "1", "--unit", "coffee")):
        assert (await run("budgets", "set", *wrong)).returncode == 2


async def test_samples_of_a_step_are_listed(world: World, run: Run) -> None:
    await world.run("a")
    assert "no step has samples yet" in await out(run("samples", "a"))
    hostile = kept_attempt(member=1, reward=-2.0, components={"\x1b[31mred": 0.5}, finish="length")
    await keep(world.bus, step_samples("a", 1), step_samples("a", 3, [kept_attempt(), hostile]))
    table = await out(run("samples", "a", "--wide"))
    lines = (await out(run("samples", "a", "--step", "1", "--json"))).splitlines()
    missing = await run("samples", "a", "--step", "2")
    assert "step 3; steps with samples: 1 to 3" in table
    assert [line.split()[:4] for line in table.splitlines()[1:3]] == [["3", "0", "1", "+0.750"], ["3", "1", "-2", "+0.750"]]
    assert "\x1b" not in table
    found = json.loads(lines[0])
    assert (found["step"], found["ids"], found["sampled"]) == (1, [5, 6, 7, 8], [False, False, True, True])
    assert (found["sampler_logprobs"][2:], found["trainer_logprobs"][2:]) == ([-0.5, -1.0], [-0.625, -1.125])
    assert len(lines) == 1
    assert missing.returncode == 1 and "task a has no samples of step 2; steps with some: 1, 3" in missing.stderr


@pytest.mark.parametrize("command", [("keys", "create", "acme", "ci", "--http"), ("replay", "mine")])
async def test_what_needs_nats_itself_says_so(command: tuple[str, ...], tmp_path: Path) -> None:
    refused = await asyncio.to_thread(marlaas, *command, "--url", "https://host", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == "marlaas: this needs NATS itself, not a gateway: --url nats://HOST:4222\n"
