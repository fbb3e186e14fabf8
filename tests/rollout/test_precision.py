"""A pool in bfloat16: engine and trainer agree about an adapter within the tolerance, and do not about another one's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollout_svc.engine_config import ROUGH


@pytest.mark.slow
def test_canary_in_bfloat16_is_in_bounds_for_its_own_adapter_alone() -> None:
    command = [sys.executable, "-m", "bench.canary", "--device", "cpu", "--precision", "bfloat16"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0, (done.stderr + done.stdout)[-2000:]
    found = json.loads(done.stdout[done.stdout.index("{\n") :])
    assert found["allowed"] == [ROUGH.max, ROUGH.mean]
    for most, mean in [*found["alone"].values(), *found["together"].values()]:
        assert 1e-4 < most < ROUGH.max / 2
        assert mean < ROUGH.mean / 2
    assert found["other"][1] > 2 * ROUGH.mean
