"""Chaos runs of minutes. The long ones: `make chaos`."""

from pathlib import Path

import pytest

from tests.chaos.harness import run

STEPS = 12


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("faults", [pytest.param(10, marks=pytest.mark.slow), pytest.param(30, marks=pytest.mark.chaos)])
async def test_every_task_finishes_the_doctor_is_content_and_every_step_comes_out_the_same(faults: int, tmp_path: Path) -> None:
    report = await run(tmp_path / "stack", seed=1, faults=faults, steps=STEPS, emit=print)
    assert len(report.recoveries) == faults
    assert report.steps == report.tasks * STEPS == report.replayed_steps
    assert report.doctor.startswith("all ")
