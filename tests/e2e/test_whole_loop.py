"""The whole loop with nothing left out: the one-machine stack, real NATS, PostgreSQL, vLLM and training, three tenants.

One test, because starting the stack is most of its time. Three tasks train side by side; the whole stack is killed in the
middle and restarted; every task continues from its version and finishes. The engine's log-probabilities are those of the
pulled adapters in plain transformers and PEFT.
"""

import asyncio
import os
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from common import streams
from common.bus import Bus
from common.messages import GroupContext, TokenRecord, TrajectoriesScored
from common.pools import read_pools
from marlaas.client import Client
from marlaas.stack import control as stacks
from marlaas.stack.state_files import Stack
from tests.support.paths import ROOT
from tests.support.waiting import eventually

POOLS = ROOT / "pools.toml"
STEPS = 8
TASKS: dict[str, dict[str, Any]] = {
    "letters": {
        "tenant": "acme",
        "environment": {"name": "reasoning_gym:letter_counting", "options": {"min_words": 1, "max_words": 2}},
        "algorithm": {"group_size": 4, "groups_per_step": 4, "max_staleness": 1},
        "lora": {"rank": 4, "alpha": 8},
    },
    "products": {
        "tenant": "globex",
        "environment": {"name": "reasoning_gym:products", "options": {"min_digits": 1, "max_digits": 1}},
        "algorithm": {"group_size": 4, "groups_per_step": 4, "max_staleness": 2},
        "lora": {"rank": 8, "alpha": 16, "targets": ["q_proj", "v_proj", "down_proj"]},
        "sampling": {"temperature": 0.7, "max_tokens": 16},
    },
    "lcm": {
        "tenant": "initech",
        "environment": {"name": "reasoning_gym:lcm", "options": {"min_value": 1, "max_value": 12}},
        "algorithm": {"group_size": 4, "groups_per_step": 4, "max_staleness": 0},
        "lora": {"rank": 16, "alpha": 32},
    },
}


def spec(name: str) -> dict[str, Any]:
    common = {"name": name, "pool": "tiny", "steps": STEPS, "sampling": {"max_tokens": 16}, "limits": {"max_prompt_tokens": 128}}
    # The version that most samples are of is compared later, when it may be an old one.
    return common | {"keep": {"adapters": "all"}} | TASKS[name]


def up(data: Path) -> Stack:
    starting = stacks.start(stacks.make_plan(data, POOLS), end_with_parent=True)
    return stacks.wait_until_ready(starting, lambda stack: None)


def kill_everything(stack: Stack) -> None:
    """Kill every process at once, as a power cut would."""
    root = psutil.Process(stack.supervisor.pid)
    processes = [root, *root.children(recursive=True)]
    for process in processes:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # ended with its parent
    # Until no process has the data: PostgreSQL refuses to start beside a predecessor that is still listed.
    assert not psutil.wait_procs(processes, timeout=250)[1]


def rows(stack: Stack, query: str) -> list[Any]:
    with create_engine(stack.database_url, poolclass=NullPool).connect() as connection:
        return list(connection.execute(text(query)).all())


@asynccontextmanager
async def connected(stack: Stack) -> AsyncIterator[tuple[Client, Bus]]:
    key = stack.operator_key
    async with await Bus.connect(stack.nats_url, "e2e", creds=key) as bus, Client.connect(stack.nats_url, creds=key) as client:
        yield client, bus


async def version_reached(client: Client, tasks: list[str], version: int) -> None:
    async with asyncio.timeout(240):
        while min([(await client.status(task)).version for task in tasks]) < version:
            await asyncio.sleep(0.2)


Sample = tuple[GroupContext, TokenRecord]


async def collect_samples(bus: Bus, into: dict[str, list[Sample]]) -> None:
    """Trajectories of trained versions as they are scored, before the scheduler deletes them."""
    async for delivery in bus.streams.follow(streams.SCORED, "trajectories.scored.>"):
        scored = delivery.read(TrajectoriesScored)
        if scored.group.version > 0:
            into[scored.group.task] += [(scored.group, member.transcript) for member in scored.members]


@pytest.mark.timeout(900)
async def test_three_tenants_train_side_by_side_through_a_crash_of_everything(data: Path, tmp_path: Path) -> None:
    samples: dict[str, list[Sample]] = defaultdict(list)
    stack = up(data)
    async with connected(stack) as (client, bus):
        tasks = {name: await client.submit(spec(name)) for name in TASKS}
        collecting = asyncio.create_task(collect_samples(bus, samples))
        await version_reached(client, list(tasks.values()), 2)
        await eventually(lambda: all(len(samples[task]) >= 16 for task in tasks.values()))
        collecting.cancel()
        await compare_with_plain_peft(client, bus, samples, tmp_path)
    before = {row.task: row.version for row in rows(stack, "SELECT task, version FROM task_status")}
    kill_everything(stack)

    stack = up(data)
    async with connected(stack) as (client, bus):
        after = {row.task: row.version for row in rows(stack, "SELECT task, version FROM task_status")}
        assert all(after[task] >= version for task, version in before.items())
        async with asyncio.timeout(300):
            for task in tasks.values():
                assert (await client.wait(task)).state == "finished"
        check_the_record(stack, tasks)
        for name, task in tasks.items():
            assert (await client.pull(task, tmp_path / "final" / name)).version == STEPS


async def compare_with_plain_peft(client: Client, bus: Bus, samples: dict[str, list[Sample]], folder: Path) -> None:
    """While others train: the log-probabilities that were sampled with are those of the adapter, pulled and loaded."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    assert len(samples) == len(TASKS)
    model_folder = read_pools(POOLS)["tiny"].model
    for task, found in samples.items():
        version = Counter(group.version for group, _ in found).most_common(1)[0][0]
        await client.pull(task, folder / task, version)
        base = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
        plain: Any = PeftModel.from_pretrained(base, str(folder / task)).eval()
        compared = 0
        for group, record in [(group, record) for group, record in found if group.version == version][:8]:
            ids = torch.from_numpy(record.ids_T().astype(np.int64))
            with torch.no_grad():
                logits = plain(ids[None]).logits[0, :-1].double() / group.sampling.temperature
            expected = logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0].numpy()
            sampled = record.sampled_T()[1:] == 1
            np.testing.assert_allclose(record.logprobs_T()[1:][sampled], expected[sampled], atol=1e-4)
            compared += int(sampled.sum())
        assert compared >= 8, task


def check_the_record(stack: Stack, tasks: dict[str, str]) -> None:
    """Assert what PostgreSQL holds once all is done."""
    assert rows(stack, "SELECT DISTINCT state, version FROM task_status") == [("finished", STEPS)]
    steps = rows(stack, "SELECT task, count(*), min(version), max(version) FROM steps WHERE state = 'trained' GROUP BY task")
    assert sorted(tuple(row) for row in steps) == [(task, STEPS, 0, STEPS - 1) for task in sorted(tasks.values())]
    bounds = {row.task: row for row in rows(stack, "SELECT * FROM task_staleness")}
    for name, task in tasks.items():
        assert bounds[task].trained_max <= TASKS[name]["algorithm"]["max_staleness"]
    assert bounds[tasks["lcm"]].trained_mean == 0
    trained = rows(stack, "SELECT count(*) FROM trajectories WHERE state = 'trained'")
    assert trained == [(len(TASKS) * STEPS * 4 * 4,)]
    assert rows(stack, "SELECT count(*) FROM trajectories WHERE state IN ('open', 'scored')") == [(0,)]
    overlaps = """
        SELECT count(*) FROM task_timeline a JOIN task_timeline b ON a.task <> b.task
        WHERE a.started_at < b.last_scored_at AND a.finished_at > b.first_admitted_at"""
    assert rows(stack, overlaps)[0][0] > 0, "no step was trained while another task was sampling"
