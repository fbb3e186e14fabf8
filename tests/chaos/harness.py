"""One chaos run on a stack of its own."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psycopg

from marlaas import stack as stacks
from marlaas.client import Client
from marlaas.state import Plan, Stack, read_plan, read_stack
from tests.chaos.faults import Fault, Target, series

REPOSITORY = Path(__file__).parents[2]
RECOVERY_TIMEOUT_S = 240.0
FINISH_TIMEOUT_S = 600.0
SWEEP_S = 5.0
ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "reasoning_gym:letter_counting": {"min_words": 1, "max_words": 2},
    "reasoning_gym:products": {"min_digits": 1, "max_digits": 1},
    "reasoning_gym:lcm": {"min_value": 1, "max_value": 12},
    "reasoning_gym:gcd": {"min_value": 1, "max_value": 12},
}


class ChaosFailed(Exception):
    """Something did not survive; the text says what."""


@dataclass
class Report:
    """What a run measured."""

    seed: int
    recoveries_s: dict[str, list[float]] = field(default_factory=dict)
    """Kind of fault → seconds from its end until every process was ready and another step had been trained."""
    versions_at_end: dict[str, int] = field(default_factory=dict)
    doctor: str = ""
    took_s: float = 0.0


def spec(name: str, tenant: str, environment: str, staleness: int, steps: int) -> dict[str, Any]:
    """Small steps, so that many are cut by faults. Groups are given up after 40 s, so that a lost one shows as a delay, not a hang."""
    return {
        "name": name,
        "tenant": tenant,
        "pool": "tiny",
        "steps": steps,
        "environment": {"name": environment, "options": ENVIRONMENTS[environment]},
        "sampling": {"max_tokens": 12},
        "limits": {"max_prompt_tokens": 128, "episode_timeout_s": 40},
        "algorithm": {"group_size": 4, "groups_per_step": 2, "max_staleness": staleness},
        "lora": {"rank": 4, "alpha": 8},
    }


@asynccontextmanager
async def running_stack(data: Path) -> AsyncIterator[Stack]:
    """The stack with every service behind `launch`, until the block ends."""
    plan = stacks.make_plan(data, REPOSITORY / "pools.toml")
    starting = stacks.start(_launched(plan), end_with_parent=True)
    try:
        yield await asyncio.to_thread(stacks.wait_until_ready, starting, lambda stack: None)
    finally:
        await asyncio.to_thread(stacks.stop, data)


def _launched(plan: Plan) -> Plan:
    services = [
        service.model_copy(
            update={
                "argv": [sys.executable, "-m", "tests.chaos.launch", str(plan.data / "armed" / service.name), service.argv[-1]],
                "env": service.env
                | {"PYTHONPATH": str(REPOSITORY)}
                | ({"MARLAAS_SCHEDULER_SWEEP_S": str(SWEEP_S)} if service.name == "scheduler" else {}),
            }
        )
        for service in plan.services
    ]
    return plan.model_copy(update={"services": services})


async def run(data: Path, *, seed: int, faults: int, steps: int, tell: Callable[[str], None]) -> Report:
    """Raises: ChaosFailed, saying what did not survive."""
    random, report, started = Random(seed), Report(seed), time.monotonic()
    async with running_stack(data) as stack:
        async with Client.connect(stack.nats_url) as client:
            tasks = [
                await client.submit(spec(f"chaos-{number}", f"tenant-{number % 3}", environment, number % 3, steps))
                for number, environment in enumerate(ENVIRONMENTS)
            ]
        target = Target(data.resolve(), stack.nats_url, tuple(tasks), random)
        await _progress(stack, 0)
        for number, fault in enumerate(series(random, faults), 1):
            if await _all_ended(stack):
                tell(f"all tasks ended before fault {number}; give them more --steps")
                break
            took_s = await _recovery_s(target, stack, fault)
            report.recoveries_s.setdefault(fault.kind, []).append(round(took_s, 2))
            tell(f"{number:3} {fault.kind:36} {took_s:6.1f} s")
        report.versions_at_end = await _finished(stack, steps)
        report.doctor = await _doctor(data)
    report.took_s = round(time.monotonic() - started, 1)
    return report


async def _recovery_s(target: Target, stack: Stack, fault: Fault) -> float:
    """Do it; seconds from its end until the stack is ready and one more step is trained."""
    await fault.do(target)
    over = time.monotonic()
    before = await _versions(stack)
    try:
        async with asyncio.timeout(RECOVERY_TIMEOUT_S):
            while not ((_is_ready(target.data) and (await _versions(stack)) > before) or await _all_ended(stack)):
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise ChaosFailed(f"no step within {RECOVERY_TIMEOUT_S:.0f} s after: {fault.kind}; logs: {target.data / 'logs'}") from None
    return time.monotonic() - over


def _is_ready(data: Path) -> bool:
    stack = read_stack(data)
    return stack is not None and stack.is_ready


async def _progress(stack: Stack, beyond: int) -> None:
    async with asyncio.timeout(RECOVERY_TIMEOUT_S):
        while await _versions(stack) <= beyond:
            await asyncio.sleep(0.1)


async def _finished(stack: Stack, steps: int) -> dict[str, int]:
    deadline = time.monotonic() + FINISH_TIMEOUT_S
    while not await _all_ended(stack):
        if time.monotonic() > deadline:
            raise ChaosFailed(f"not finished after {FINISH_TIMEOUT_S:.0f} s: {await _rows(stack, 'SELECT id, state, version FROM tasks')}")
        await asyncio.sleep(0.2)
    rows = await _rows(stack, "SELECT id, state, version, reason FROM tasks")
    if any(state != "finished" or version != steps for _, state, version, _ in rows):
        raise ChaosFailed(f"not every task finished: {rows}")
    return {task: version for task, _, version, _ in rows}


async def _doctor(data: Path) -> str:
    """The verdict once the scheduler has swept; strict: nothing may be left."""
    env = {**os.environ, **read_plan(data).prepare_env}
    said = ""
    for _ in range(4):
        await asyncio.sleep(SWEEP_S)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "scheduler_svc.doctor", "--deep", "--strict", env=env, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        said = (await process.communicate())[0].decode()
        if process.returncode == 0:
            return said.strip().splitlines()[-1]
    raise ChaosFailed(f"the doctor finds:\n{said}")


async def _versions(stack: Stack) -> int:
    """Steps trained by all tasks together."""
    return int((await _rows(stack, "SELECT coalesce(sum(version), 0) FROM tasks"))[0][0])


async def _all_ended(stack: Stack) -> bool:
    return (await _rows(stack, "SELECT count(*) FROM tasks WHERE state IN ('submitted', 'running', 'paused')"))[0][0] == 0


async def _rows(stack: Stack, query: str) -> list[tuple[Any, ...]]:
    """Asks until PostgreSQL answers."""
    url = stack.database_url.replace("+psycopg", "")
    while True:
        try:
            async with asyncio.timeout(10), await psycopg.AsyncConnection.connect(url) as connection:
                return await (await connection.execute(query)).fetchall()
        except (psycopg.OperationalError, TimeoutError):
            await asyncio.sleep(0.2)
