"""A short chaos run. The long ones: `make chaos`."""

from pathlib import Path

import pytest

from tests.chaos.harness import run


@pytest.mark.chaos
@pytest.mark.timeout(900)
async def test_every_task_finishes_and_the_doctor_is_content(tmp_path: Path) -> None:
    report = await run(tmp_path / "stack", seed=1, faults=8, steps=25, tell=print)
    assert sum(map(len, report.recoveries_s.values())) == 8
    assert set(report.versions_at_end.values()) == {25}
    assert report.doctor.startswith("all ")
