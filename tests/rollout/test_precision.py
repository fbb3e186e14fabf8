"""A pool in bfloat16: engine and trainer agree about an adapter within the tolerance, and do not about another one's."""

import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from common.errors import Fatal
from common.pools import Pool
from rollout_svc.engine import require_head
from rollout_svc.engine_config import ROUGH, EngineSettings


def compared(*options: str) -> dict[str, Any]:
    """Differences of engine and trainer in bfloat16."""
    command = [sys.executable, "-m", "bench.canary", "--device", "cpu", "--precision", "bfloat16", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0, (done.stderr + done.stdout)[-2000:]
    return json.loads(done.stdout[done.stdout.index("{\n") :])


@pytest.mark.slow
def test_canary_in_bfloat16_is_in_bounds_for_its_own_adapter_alone() -> None:
    found = compared()
    assert found["allowed"] == [ROUGH.max, ROUGH.mean]
    for most, mean in [*found["alone"].values(), *found["together"].values()]:
        assert 1e-4 < most < ROUGH.max / 2
        assert mean < ROUGH.mean / 2
    assert found["other"][1] > 2 * ROUGH.mean


@pytest.mark.slow
def test_float32_logits_bring_engine_and_trainer_closer_together() -> None:
    """Hidden states stay in bfloat16, and with them some difference."""
    rounded, exact = (
        fmean(mean for _, mean in found["alone"].values()) for found in (compared("--head", "model"), compared("--head", "float32"))
    )
    assert 0 < exact < 0.8 * rounded


def test_engine_that_would_compute_logits_otherwise_than_the_pool_says_does_not_start() -> None:
    settings = EngineSettings.of(Pool(model="someone/model", head="float32"))
    with pytest.raises(Fatal, match="the pool says head = 'float32', but this engine would compute logits in bfloat16; set head = 'model'"):
        require_head(settings, "bfloat16")
    require_head(settings, "float32")
    require_head(EngineSettings.of(Pool(model="someone/model")), "bfloat16")
