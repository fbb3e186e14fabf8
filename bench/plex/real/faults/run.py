"""One run: a stack of its own, tasks, faults one after another, and what is true at its end."""

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.harness import report
from bench.harness.keys import operator
from bench.harness.services import BenchError, local_stack
from bench.plex.real import arms
from bench.plex.real.arms import ACCELERATOR, RATIO
from bench.plex.real.faults import refills
from bench.plex.real.faults.rows import Rows
from bench.plex.real.faults.scene import PATIENCE_S, Scene, pipe, until
from bench.plex.real.faults.schedule import LOADS, WORKLOAD, Run
from bench.plex.real.faults.tasks import Endless, differing
from bench.plex.real.recorder import Executor, Recorder, Recording, executors
from bench.plex.real.workloads import task_specs
from common.spec import TaskSpec
from marlaas.cli.session import operator_key
from marlaas.stack.state_files import Service, Stack, StackPlan, read_plan, read_stack

TENANTS = ("north", "south")
ARMED = ("rollout_svc", "trainer_svc", "scheduler_svc")
UNBOOKED = "SELECT count(*)::int FROM slices WHERE ended_at IS NULL OR booked_at IS NULL"
HELD_MS = "SELECT coalesce(sum(extract(epoch FROM ended_at - ordered_at) * 1000), 0)::bigint FROM slices"
BOOKED_MS = "SELECT coalesce(sum(ms), 0)::bigint FROM slice_shares"
SWEEPS = 4
SWEEP_S = 5.0


def run(wanted: Run, bases: Mapping[str, Path], reference: Mapping[str, list[str]] | None, logs: Path) -> dict[str, Any]:
    """Figures of one run. `reference`: digests by task's name; None: those before its first fault. `logs`: folder for logs of a failed run.

    Raises: BenchError when the stack does not recover, or a task does not finish.
    """
    with tempfile.TemporaryDirectory(prefix="marlaas-faults-") as name:
        models = Path(name) / "models"
        own = {base: Path(shutil.copytree(bases[base], models / base)) for base in (one.base for one in LOADS)}
        arm = replace(RATIO, options={**(RATIO.options or {}), **wanted.options})
        file = arms.pools_file(Path(name), own, LOADS, arm, WORKLOAD)
        data: list[Path] = []

        def changed(plan: StackPlan) -> StackPlan:
            data.append(plan.data)
            return plan.model_copy(update={"services": [_armed(service, plan.data) for service in plan.services]})

        with (
            local_stack(file, {"MARLAAS_SCHEDULER_SWEEP_S": str(SWEEP_S)}, changed=changed) as stack,
            Recorder(lambda: _executors(data[0]), data[0] / "accelerators" / ACCELERATOR, [arms.CORE]) as recording,
        ):
            try:
                return asyncio.run(_on(stack, wanted, data[0], models, recording, reference))
            except* BenchError as errors:
                shutil.copytree(data[0] / "logs", logs, dirs_exist_ok=True)
                raise BenchError(f"{'; '.join(_leaves(errors))}; logs: {logs}") from None


def _executors(data: Path) -> dict[str, Executor]:
    """Those that run now: they are killed and start again."""
    stack = read_stack(data)
    return executors(stack) if stack is not None else {}


def _leaves(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [text for one in error.exceptions for text in _leaves(one)]
    return [str(error)]


async def _on(
    stack: Stack, wanted: Run, data: Path, models: Path, recording: Recording, reference: Mapping[str, list[str]] | None
) -> dict[str, Any]:
    async with (
        operator(stack) as client,
        aclosing(Rows(stack.database_url.replace("+psycopg", ""))) as rows,
    ):
        return await _run(wanted, Scene(data, models, client, rows, recording), reference)


async def _run(wanted: Run, scene: Scene, reference: Mapping[str, list[str]] | None) -> dict[str, Any]:
    began_s, outcomes, tasks = time.monotonic(), list[dict[str, Any]](), Endless(scene, specs())
    async with asyncio.TaskGroup() as runners:
        runners.create_task(tasks.run())
        await until(lambda: _all_awake_once(scene), "every executor was awake once", 2 * PATIENCE_S)
        if reference is None:
            await until(lambda: _all_finished_once(tasks), "every task has finished once", 2 * PATIENCE_S)
            reference = tasks.first_digests()
        for fault in wanted.faults:
            outcome = {"kind": fault.kind, **await fault.do(scene)}
            print(f"  {outcome}", flush=True)
            outcomes.append(outcome)
        tasks.stop()
    if wanted.then is not None:
        outcomes.append({"kind": "poison", **await wanted.then(scene, tasks)})
        print(f"  {outcomes[-1]}", flush=True)
    differ = differing([*tasks.finished, *await tasks.present()], reference)
    replayed = {task for task in differ if await refills.equals_its_replay(scene, task)} if wanted.refills else set[str]()
    return {
        "run": wanted.name,
        "commit": report.commit(),
        "took_s": round(time.monotonic() - began_s, 1),
        "load": report.load_now(),
        "faults": outcomes,
        "tasks": len(tasks.finished),
        "lost": len(tasks.lost),
        "steps": sum(len(one.digests) for one in tasks.finished),
        "task_s": sorted(round(one.took_s, 1) for one in tasks.finished),
        "digests": reference,
        "differing": [task for task in differ if task not in replayed],
        "replayed": sorted(replayed),
        **await _booked(scene),
        "doctor": await _doctor(scene.data),
        **scene.recording.figures(),
    }


def specs() -> list[TaskSpec]:
    """Two tenants, each with a task in each pool. All batches are kept, for replays."""
    found = [spec for load in LOADS for spec in task_specs(load)]
    return [_of_tenant(spec, TENANTS[number % len(TENANTS)]) for number, spec in enumerate(found)]


def _of_tenant(spec: TaskSpec, tenant: str) -> TaskSpec:
    return spec.model_copy(update={"tenant": tenant, "keep": spec.keep.model_copy(update={"batches": spec.steps})})


def _armed(service: Service, data: Path) -> Service:
    if service.argv[-1] not in ARMED:
        return service
    argv = [sys.executable, "-m", "bench.plex.real.faults.armed", str(pipe(data, service.name)), service.argv[-1]]
    return service.model_copy(update={"argv": argv, "env": service.env | {"PYTHONPATH": str(report.ROOT)}})


async def _all_awake_once(scene: Scene) -> bool:
    """From then on each executor knows how long its moves take, and its watchdog is patient for half a minute, no longer."""
    found = await scene.rows("SELECT count(DISTINCT executor)::int FROM slices WHERE ended = 'switched' AND awake_at IS NOT NULL")
    return int(found[0][0]) == 2 * len(LOADS)


async def _all_finished_once(tasks: Endless) -> bool:
    return len(tasks.first_digests()) == len(tasks.specs)


async def _booked(scene: Scene) -> dict[str, int]:
    """Once no slice is open: milliseconds held, and booked."""

    async def look() -> bool:
        return (await scene.rows(UNBOOKED))[0][0] == 0

    await until(look, "every slice is booked")
    held, booked = (await scene.rows(HELD_MS))[0][0], (await scene.rows(BOOKED_MS))[0][0]
    return {"slices": (await scene.rows("SELECT count(*)::int FROM slices"))[0][0], "held_ms": int(held), "booked_ms": int(booked)}


async def _doctor(data: Path) -> str:
    """Its verdict once the scheduler has swept. Raises: BenchError with what it finds."""
    plan, said = read_plan(data), ""
    env = {**os.environ, **plan.prepare_env, **operator_key(plan)}
    for _ in range(SWEEPS):
        await asyncio.sleep(SWEEP_S)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "scheduler_svc.doctor", "--deep", "--strict", env=env,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        said = (await process.communicate())[0].decode()
        if process.returncode == 0:
            return said.strip().splitlines()[-1]
    raise BenchError(f"the doctor finds: {said}")
