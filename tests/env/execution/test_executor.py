"""Environments are built beside the event loop, and a constructor that fails is a failure of its own calls."""

import asyncio
from pathlib import Path

import pytest

from common import spec
from common.fairness.fair_queue import Claimant
from env_svc.calls import Failed, OpenCall, Opened, Outcome
from env_svc.execution.executor import EnvironmentExecutor
from env_svc.execution.tool_calls import ToolCallExecutor
from env_svc.execution.workers import Workers
from env_svc.tools.toolbox import Toolbox
from tests.support.waiting import eventually


async def opened(executor: ToolCallExecutor, name: str, **options: object) -> Outcome:
    environment = spec.EnvironmentSection(name=f"tests.env.toys:{name}", options=options)  # pyright: ignore
    batches = [batch async for batch in executor.run(Claimant("a", "t"), environment, [OpenCall(0, 0)], 60.0)]
    return batches[0][0][1]


def executor_of(workers: Workers, timeout_s: float = 60.0) -> ToolCallExecutor:
    return ToolCallExecutor(EnvironmentExecutor(workers, timeout_s), Toolbox())


async def test_constructor_that_takes_long_runs_once_and_delays_no_other_call(workers: Workers, tmp_path: Path) -> None:
    executor, gate, trace = executor_of(workers), tmp_path / "gate", tmp_path / "trace"
    slow = [asyncio.ensure_future(opened(executor, "Heavy", gate=str(gate), trace=str(trace))) for _ in range(3)]
    await eventually(trace.exists)
    assert isinstance(await opened(executor, "Countdown"), Opened)
    assert not any(runner.done() for runner in slow)
    gate.touch()
    assert all(isinstance(outcome, Opened) for outcome in await asyncio.gather(*slow))
    assert trace.read_text() == "built\n"


async def test_call_waits_for_a_constructor_as_long_as_for_anything_and_construction_continues(workers: Workers, tmp_path: Path) -> None:
    executor, gate, trace = executor_of(workers, timeout_s=0.2), tmp_path / "gate", tmp_path / "trace"
    late = await opened(executor, "Heavy", gate=str(gate), trace=str(trace))
    assert late == Failed(
        "environment 'tests.env.toys:Heavy' was not built within 0.2 s; its construction continues", is_infrastructure=True
    )
    gate.touch()

    async def is_built() -> bool:
        return isinstance(await opened(executor, "Heavy", gate=str(gate), trace=str(trace)), Opened)

    await eventually(is_built)
    assert trace.read_text() == "built\n"


@pytest.mark.parametrize("kind", ["Unbuildable", "ComputingUnbuildable"])
@pytest.mark.parametrize(
    ("how", "reason", "is_infrastructure"),
    [
        ("unavailable", "is unavailable: the hub is unavailable", True),
        ("raise", "cannot be built: RuntimeError: the hub is unavailable", False),
        ("exit", "cannot be built: SystemExit: the hub is unavailable", False),
        ("late", "cannot be built: TimeoutError: the hub is unavailable", False),
    ],
)
async def test_constructor_that_fails_voids_the_attempt(
    workers: Workers, kind: str, how: str, reason: str, is_infrastructure: bool
) -> None:
    outcome = await opened(executor_of(workers), kind, how=how)
    assert outcome == Failed(f"environment 'tests.env.toys:{kind}' {reason}", is_infrastructure)
