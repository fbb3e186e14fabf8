"""A chaos run of some minutes: `make test-chaos`. The long ones: `make chaos`."""

from pathlib import Path

import pytest

from tests.chaos.harness import run

FAULTS, STEPS = 30, 12


@pytest.mark.chaos
@pytest.mark.timeout(1500)
async def test_every_task_finishes_the_doctor_is_content_and_every_step_comes_out_the_same(tmp_path: Path) -> None:
    report = await run(tmp_path / "stack", seed=1, faults=FAULTS, steps=STEPS, emit=print)
    assert len(report.recoveries) == FAULTS
    assert report.steps == report.tasks * STEPS == report.replayed_steps
    assert report.doctor.startswith("all ")
