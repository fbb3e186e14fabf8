"""One chaos run on its own stack: tasks, one fault after the other, recovery times, the doctor's verdict, the replay."""

import asyncio
import math
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import psycopg

from marlaas.cli.session import operator_key
from marlaas.client import Client
from marlaas.stack import control as stacks
from marlaas.stack import database_folder, servers
from marlaas.stack.state_files import Service, Stack, read_plan, read_stack
from tests.chaos.chats import chatting, pools_with_goals
from tests.chaos.faults import Fault, kinds_for, series
from tests.chaos.replay import replayed
from tests.chaos.report import Recovery, Report
from tests.chaos.target import SERVICES, Target
from tests.support.clock import Clocks
from tests.support.disk import BLOBS_MIB, small_disk
from tests.support.paths import ROOT
from tests.support.proxy import Wire

RECOVERY_TIMEOUT_S = 240.0
FINISH_TIMEOUT_S = 600.0
SWEEP_S = 5.0
POOL = "tiny"
TENANTS = ("tenant-0", "tenant-1", "tenant-2")
ENGINE = f"rollout-{POOL}"
LOOK_EVERY_S = 0.1
ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "reasoning_gym:letter_counting": {"min_words": 1, "max_words": 2},
    "reasoning_gym:products": {"min_digits": 1, "max_digits": 1},
    "reasoning_gym:lcm": {"min_value": 1, "max_value": 12},
    "reasoning_gym:gcd": {"min_value": 1, "max_value": 12},
}


class ChaosFailed(Exception):
    """A task, an invariant or a digest did not survive; the text says which."""


def spec(name: str, tenant: str, environment: str, staleness: int, steps: int) -> dict[str, Any]:
    """Small steps, which many faults interrupt. Groups time out after 40 s, so that a lost one is a delay, not a hang."""
    return {
        "name": name,
        "tenant": tenant,
        "pool": POOL,
        "steps": steps,
        "environment": {"name": environment, "options": ENVIRONMENTS[environment]},
        "sampling": {"max_tokens": 12},
        "limits": {"max_prompt_tokens": 128, "episode_timeout_s": 40},
        "algorithm": {"group_size": 4, "groups_per_step": 2, "max_staleness": staleness},
        "lora": {"rank": 4, "alpha": 8},
        "keep": {"batches": steps},
    }


async def run(
    data: Path, *, seed: int, faults: int, steps: int, emit: Callable[[str], None], only: str = "", max_s: float = math.inf
) -> Report:
    """`only`: kinds whose name contains it; `max_s`: no fault begins later. Raises: ChaosFailed."""
    report, started = Report(seed), time.monotonic()
    async with (
        breakable_stack(data.resolve(), Random(seed)) as (stack, target),
        Client.connect(stack.nats_url, creds=stack.operator_key) as client,
    ):
        submitting = _Submissions(client, stack, steps)
        await submitting.keep_four()
        await _progress(stack)
        kinds = [kind for kind in kinds_for(target, lambda: _live_tasks(stack)) if only in kind.kind]
        async with chatting(stack, TENANTS[0]) as answers:
            for number, fault in enumerate(series(kinds, target.random, faults), 1):
                if time.monotonic() - started > max_s:
                    emit(f"{number - 1} faults in the given time")
                    break
                recovery = await _recovery(target, stack, fault)
                await submitting.keep_four()
                report.faults = number
                report.recoveries.append(recovery)
                engine = "" if recovery.engine_start_s is None else f", of them {recovery.engine_start_s:.1f} s the start of the engine"
                emit(f"{number:3} {fault.kind:36} {recovery.took_s:6.1f} s{engine}")
            before = answers["200"]
            await _finished(stack, steps)
            async with asyncio.timeout(RECOVERY_TIMEOUT_S):
                while answers["200"] == before:  # after the last fault chats are answered
                    await asyncio.sleep(LOOK_EVERY_S)
        report.chats = dict(answers)
        report.doctor = await _doctor(data)
        await _count(stack, report)
        finished = [str(row[0]) for row in await _rows(stack, "SELECT id FROM tasks WHERE state = 'finished' ORDER BY id")]
        report.replayed_steps, differing = await replayed(stack, POOL, finished)
        if differing:
            raise ChaosFailed("replayed from the recorded batches, these differ: " + ", ".join(differing))
        report.points_reached = {point: target.points_reached.count(point) for point in sorted(set(target.points_reached))}
    report.took_s = round(time.monotonic() - started, 1)
    return report


@asynccontextmanager
async def breakable_stack(data: Path, random: Random) -> AsyncIterator[tuple[Stack, Target]]:
    """The stack with every service behind wires, clocks and crash points, until the block ends."""
    async with AsyncExitStack() as until_end:
        disk = data / "nats" / "jetstream"
        mounted = until_end.enter_context(small_disk(disk))
        # So that the streams' smallest bounds fit the disk too, which the doctor looks at.
        room = {"MARLAAS_NATS_BLOBS_BYTES": str(BLOBS_MIB * 2**20)} if mounted else None
        plan = stacks.make_plan(data, pools_with_goals(data), settings=room)
        wires = {f"{name}-nats": Wire(f"{name}-nats", plan.nats_port) for name in SERVICES}
        wires["scheduler-postgres"] = Wire("scheduler-postgres", plan.postgres_port)
        for wire in wires.values():
            await until_end.enter_async_context(wire.listening())
        clocks = Clocks.build(data / "clocks")
        target = Target(data, servers.nats_url(plan.nats_port), random, wires, clocks, disk if mounted else None, [])
        plan = plan.model_copy(update={"services": [_breakable(service, target) for service in plan.services]})
        inherited = clocks.environment("postgres") if clocks else {}
        os.environ |= inherited  # for the supervisor, and so for PostgreSQL; this process runs already
        starting = stacks.start(plan, end_with_parent=True)
        for name in inherited:
            del os.environ[name]
        until_end.push_async_callback(asyncio.to_thread, stacks.stop, data)
        yield await asyncio.to_thread(stacks.wait_until_ready, starting, lambda stack: None), target


def _breakable(service: Service, target: Target) -> Service:
    env = service.env | {"PYTHONPATH": str(ROOT), "MARLAAS_NATS_URL": servers.nats_url(target.wires[f"{service.name}-nats"].port)}
    if service.name == "scheduler":
        env |= {"MARLAAS_SCHEDULER_SWEEP_S": str(SWEEP_S)}
        passfile = database_folder.passfile(target.data / "postgres")
        env |= {"MARLAAS_SCHEDULER_DATABASE_URL": servers.database_url(target.wires["scheduler-postgres"].port, passfile=passfile)}
    if target.clocks is not None:
        env |= target.clocks.environment(service.name)
    argv = [sys.executable, "-m", "tests.chaos.launch", str(target.armed(service.name)), service.argv[-1]]
    return service.model_copy(update={"argv": argv, "env": env})


class _Submissions:
    """Keeps four tasks alive, one of each environment: where one has finished, another begins."""

    def __init__(self, client: Client, stack: Stack, steps: int) -> None:
        self._client = client
        self._stack = stack
        self._steps = steps
        self._last: dict[str, str] = {}
        self._count = 0

    async def keep_four(self) -> None:
        live = await _live_tasks(self._stack)
        for number, environment in enumerate(ENVIRONMENTS):
            if self._last.get(environment) not in live:
                wanted = spec(f"chaos-{self._count}", TENANTS[number % 3], environment, number % 3, self._steps)
                self._last[environment] = await self._client.submit(wanted)
                self._count += 1


async def _finished(stack: Stack, steps: int) -> None:
    deadline = time.monotonic() + FINISH_TIMEOUT_S
    while await _live_tasks(stack):
        if time.monotonic() > deadline:
            raise ChaosFailed(f"not finished after {FINISH_TIMEOUT_S:.0f} s: {await _rows(stack, 'SELECT id, state, version FROM tasks')}")
        await asyncio.sleep(LOOK_EVERY_S)
    rows = await _rows(stack, "SELECT id, state, version, reason FROM tasks WHERE tenant LIKE 'tenant-%'")
    wrong = [row for row in rows if (row[1], row[2]) != ("finished", steps)]
    if wrong:
        raise ChaosFailed(f"not every task finished: {wrong}")


async def _live_tasks(stack: Stack) -> list[str]:
    rows = await _rows(stack, "SELECT id FROM tasks WHERE state IN ('submitted', 'running', 'paused') ORDER BY id")
    return [str(row[0]) for row in rows]


async def _count(stack: Stack, report: Report) -> None:
    report.tasks, report.steps = (await _rows(stack, "SELECT count(*), sum(version)::int FROM tasks WHERE state = 'finished'"))[0]
    report.trajectories = (await _rows(stack, "SELECT count(*) FROM trajectories WHERE state = 'trained'"))[0][0]
    report.void_groups = dict(await _rows(stack, "SELECT void_reason, count(*) FROM groups WHERE state = 'void' GROUP BY 1 ORDER BY 1"))


async def _recovery(target: Target, stack: Stack, fault: Fault) -> Recovery:
    """Inject it, and wait until the stack is ready and one more step is trained."""
    engine_lives = target.restarts(ENGINE)
    await fault.do(target)
    over = time.monotonic()
    before = await _versions(stack)
    try:
        async with asyncio.timeout(RECOVERY_TIMEOUT_S):
            while not (_is_ready(target.data) and ((await _versions(stack)) > before or not await _live_tasks(stack))):
                await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError:
        raise ChaosFailed(f"no step within {RECOVERY_TIMEOUT_S:.0f} s after: {fault.kind}; logs: {target.data / 'logs'}") from None
    took_s = round(time.monotonic() - over, 2)
    engine_start_s = round(target.start_s(ENGINE), 2) if target.restarts(ENGINE) > engine_lives else None
    return Recovery(fault.kind, took_s, engine_start_s)


def _is_ready(data: Path) -> bool:
    stack = read_stack(data)
    return stack is not None and stack.is_ready


async def _progress(stack: Stack) -> None:
    async with asyncio.timeout(RECOVERY_TIMEOUT_S):
        while await _versions(stack) == 0:
            await asyncio.sleep(LOOK_EVERY_S)


async def _doctor(data: Path) -> str:
    """The verdict once the scheduler has swept; strict: nothing may be left."""
    plan = read_plan(data)
    env = {**os.environ, **plan.prepare_env, **operator_key(plan)}
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


async def _rows(stack: Stack, query: str) -> list[tuple[Any, ...]]:
    """Connect once PostgreSQL answers."""
    url = stack.database_url.replace("+psycopg", "")
    while True:
        try:
            async with asyncio.timeout(10), await psycopg.AsyncConnection.connect(url) as connection:
                return await (await connection.execute(query)).fetchall()
        except (psycopg.OperationalError, TimeoutError):
            await asyncio.sleep(0.2)
