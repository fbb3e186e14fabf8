"""A pool in bfloat16: engine and trainer agree about an adapter within the tolerance, and do not about another one's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import Fatal
from common.pools import Pool
from rollout_svc.engine.config import ROUGH, EngineSettings, require_head
from tests.support.paths import ROOT


@pytest.mark.acceptance
def test_canary_in_bfloat16_is_in_bounds_for_its_own_adapter_alone() -> None:
    command = [sys.executable, "-m", "bench.canary", "--device", "cpu", "--precision", "bfloat16"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550, cwd=ROOT, check=False)
    assert done.returncode == 0, (done.stderr + done.stdout)[-2000:]
    found = json.loads(done.stdout[done.stdout.index("{\n") :])
    assert found["allowed"] == [ROUGH.max, ROUGH.mean]
    for most, mean in [*found["alone"].values(), *found["together"].values()]:
        assert 1e-4 < most < ROUGH.max / 2
        assert mean < ROUGH.mean / 2
    assert found["other"][1] > 2 * ROUGH.mean


@pytest.mark.acceptance
def test_float32_logits_of_engine_and_trainer_lower_their_mismatch(tmp_path: Path) -> None:
    """On tokens that the engine sampled; a head on one side alone helps less."""
    command = [sys.executable, "-m", "bench.head", "--device", "cpu"]
    env = {**os.environ, "BENCH_RESULTS": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=550, cwd=ROOT, env=env, check=False)
    assert done.returncode == 0, (done.stderr + done.stdout)[-2000:]
    rows = json.loads((tmp_path / "head.json").read_text())["rows"]
    mismatch = {(row["sampler"], row["trainer"]): row["mismatch"] for row in rows}
    assert 0 < mismatch["float32", "float32"] < 0.8 * mismatch["model", "model"]
    assert mismatch["float32", "float32"] < min(mismatch["float32", "model"], mismatch["model", "float32"])


def test_engine_that_would_compute_logits_otherwise_than_the_pool_says_does_not_start() -> None:
    settings = EngineSettings.of(Pool(model="someone/model", head="float32"))
    with pytest.raises(Fatal, match="the pool says head = 'float32', but this engine would compute logits in bfloat16; set head = 'model'"):
        require_head(settings, "bfloat16")
    require_head(settings, "float32")
    require_head(EngineSettings.of(Pool(model="someone/model")), "bfloat16")
