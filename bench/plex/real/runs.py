"""One run of an arm: a stack is started, warmed up, and given the workload's tasks."""

import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import part, report
from bench.harness.keys import measuring, operator
from bench.harness.services import BenchError, local_stack
from bench.plex.real import arms, slices
from bench.plex.real.arms import CORE, OTHERS_CORE, Arm
from bench.plex.real.recorder import Recorder, executors
from bench.plex.real.workloads import PoolLoad, Workload, task_specs
from common.accelerators import trace
from common.messages import SliceOf
from common.spec import TaskSpec
from common.task_states import ENDED
from marlaas.client import Client, ClientError
from marlaas.stack.state_files import Stack, StackPlan

RUN_S = 400.0
"""Maximum seconds of the tasks of one run."""
POLL_S = 0.2
BOOKED_S = 60.0
"""Maximum seconds until the last slice is booked."""

Trained = tuple[float, dict[str, float], dict[str, list[str]]]
"""Begin, end of each task, digests of its adapters."""


@dataclass(frozen=True)
class Ran:
    """What one stack did with its tasks. Times are Unix seconds."""

    began_s: float
    ended_s: dict[str, float]
    """By task."""
    steps: int
    busy_s: dict[str, float]
    """Processor seconds of each executor on the core."""
    digests: dict[str, list[str]]
    """Of each task's adapters, version by version."""
    recorded: dict[str, Any]
    booked: dict[str, Any]
    """Figures of the slices; empty without a shared accelerator."""
    trace: list[str]
    """Lines of `marlaas pools trace`."""

    @property
    def makespan_s(self) -> float:
        return max(self.ended_s.values()) - self.began_s


def run(arm: Arm, workload: Workload, bases: Mapping[str, Path], device: str = "cpu") -> list[dict[str, Any]]:
    """Figures of each round; `device`: of the accelerator. Raises: BenchError when a stack does not start or a task does not finish."""
    parts = [[one] for one in workload.pools] if arm.dedicated else [list(workload.pools)]
    by_part = [_run_stack(arm, workload, pools, bases, device) for pools in parts]
    return [_figures(arm, workload, list(ran)) for ran in zip(*by_part, strict=True)]


def _figures(arm: Arm, workload: Workload, ran: Sequence[Ran]) -> dict[str, Any]:
    """`ran`: by stack."""
    accelerator_s, steps = sum(one.makespan_s for one in ran), sum(one.steps for one in ran)
    return {
        "arm": arm.name,
        "workload": workload.name,
        "load": report.load_now(),
        "accelerator_s": round(accelerator_s, 3),
        "steps": steps,
        "accelerator_s_per_step": round(accelerator_s / steps, 4),
        "task_s": {task: round(ended - one.began_s, 3) for one in ran for task, ended in one.ended_s.items()},
        "busy_s": {name: spent for one in ran for name, spent in one.busy_s.items()},
        "bubble": [round(1 - sum(one.busy_s.values()) / one.makespan_s, 4) for one in ran],
        "recorded": [one.recorded for one in ran],
        "booked": [one.booked for one in ran],
        "trace": [one.trace for one in ran],
        "digests": {task: found for one in ran for task, found in one.digests.items()},
    }


def _run_stack(arm: Arm, workload: Workload, pools: Sequence[PoolLoad], bases: Mapping[str, Path], device: str) -> list[Ran]:
    with tempfile.TemporaryDirectory(prefix="marlaas-plex-") as name:
        file = arms.pools_file(Path(name), bases, pools, arm, workload, device)
        data: list[Path] = []

        def noted(plan: StackPlan) -> StackPlan:
            data.append(plan.data)
            return plan

        others = [OTHERS_CORE] if device == "cpu" else []
        with local_stack(file, arms.settings(arm, device), changed=noted, cores=others) as stack:
            folder = data[0] / "accelerators" / arms.ACCELERATOR if arm.options is not None else None
            asyncio.run(trained(stack, [spec for one in pools for spec in task_specs(one, 1)[:1]]))  # engines start
            cores = [CORE] if device == "cpu" else []
            return [_round(stack, workload, pools, folder, cores) for _ in range(workload.rounds)]


def _round(stack: Stack, workload: Workload, pools: Sequence[PoolLoad], folder: Path | None, cores: Sequence[int]) -> Ran:
    """The tasks once. `folder`: of the accelerator's locks; None where there are none. `cores`: of the accelerator."""
    specs = [spec for one in pools for spec in task_specs(one)]
    present = executors(stack)
    with Recorder(lambda: present, folder, cores) as recording:
        (began_s, ended_s, digests), booked, lines = asyncio.run(_observed(stack, specs, is_shared=folder is not None))
    last_s = max(ended_s.values())
    return Ran(
        began_s,
        ended_s,
        sum(len(found) for found in digests.values()),
        recording.busy_s(began_s, last_s),
        digests,
        {
            **recording.figures(),
            "budget_mib": round(workload.memory_gib * 1024),
            "lock_held_share": round(recording.held_share(began_s, last_s), 4),
        },
        booked,
        lines,
    )


async def _observed(stack: Stack, specs: Sequence[TaskSpec], *, is_shared: bool) -> tuple[Trained, dict[str, Any], list[str]]:
    """What was trained, figures of the slices, and the trace."""
    async with (
        operator(stack) as client,
        slices.reported(*measuring(stack)) as reports,
    ):
        found = began_s, ended_s, _ = await trained(stack, specs)
        booked: dict[str, Any] = {}
        if is_shared:
            booked = slices.described(await _booked(client, began_s), reports, began_s, max(ended_s.values()))
        lines = trace.text_of(await client.accelerators.trace(began_s)).splitlines()
    return found, booked, lines


async def _booked(client: Client, since_s: float) -> list[SliceOf]:
    """All slices since then, once the last is booked."""
    deadline_s = time.monotonic() + BOOKED_S
    while True:
        found = await client.accelerators.slices(since_s)
        if all(one.switch_ms is not None for one in found):
            return found
        if time.monotonic() > deadline_s:
            raise BenchError(f"a slice is not booked {BOOKED_S:.0f} s after the last task's end")
        await asyncio.sleep(POLL_S)


async def trained(stack: Stack, specs: Sequence[TaskSpec]) -> Trained:
    """Begin, each task's end, and the digests of its adapters. The begin is the submission of all."""
    ended: dict[str, float] = {}
    digests: dict[str, list[str]] = {}
    try:
        async with asyncio.timeout(RUN_S), operator(stack) as client:
            began_s = time.time()
            ids = await asyncio.gather(*(client.submit(one) for one in specs))
            names = {task: one.name for task, one in zip(ids, specs, strict=True)}
            async for event in client.watch(*ids):
                if event.event == "step":
                    part.keep({"steps": 1 + sum(map(len, digests.values())), "until_s": round(event.at_s - began_s, 2)})
                    stored: Any = event.data["stored"]
                    digests.setdefault(names[event.task], []).append(stored["adapter"]["blob"]["sha256"])
                elif event.event == "finished":
                    ended[names[event.task]] = event.at_s
                elif event.event in ENDED:
                    raise BenchError(f"task {event.task} {event.event}: {event.data}")
    except TimeoutError:
        raise BenchError(f"{len(specs) - len(ended)} of {len(specs)} tasks have not finished after {RUN_S:.0f} s") from None
    except ClientError as error:
        raise BenchError(str(error)) from None
    return began_s, ended, digests
