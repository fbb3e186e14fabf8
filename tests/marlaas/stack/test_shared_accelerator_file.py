"""deploy/shared-accelerator: containers of the same executors, with the same settings, as a one-machine stack of the same pools."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from bench.harness.models import QWEN3_0_6B
from common.pools import Pool, read_accelerators, read_pools
from common.pools.memory import ELEMENT_BYTES, GIB, ModelShape
from marlaas.stack.placement import Machine, executors
from rollout_svc.accelerators.sizes import expected_sizes
from rollout_svc.engine.config import EngineSettings
from tests.support.paths import ROOT
from trainer_svc.model.memory import MemoryNeeds

EXAMPLE = ROOT / "deploy" / "shared-accelerator"
STATE_VECTORS = 3
"""Vectors of an adapter's size that a task's state has: masters and two moments."""
FOLDER = "/var/lib/marlaas/accelerators"


def services() -> dict[str, Any]:
    return yaml.safe_load((EXAMPLE / "compose.yml").read_text())["services"]


def test_each_executor_is_a_service_with_the_settings_of_a_stack() -> None:
    pools = read_pools(EXAMPLE / "pools.toml")
    accelerators = read_accelerators(EXAMPLE / "pools.toml", pools)
    wanted = [one.env for one in executors(Path("/data"), pools, accelerators, Machine((0, 1), ()))]
    found = [{name: value for name, value in one["environment"].items() if name != "TMPDIR"} for one in services().values()]
    for env in wanted:
        env["MARLAAS_ACCELERATORS_DIR"] = FOLDER
    assert sorted(map(sorted_items, found)) == sorted(map(sorted_items, wanted))


def sorted_items(env: Mapping[str, str]) -> list[tuple[str, str]]:
    return sorted(env.items())


def test_all_share_one_volume_of_locks_which_the_image_lets_its_user_write() -> None:
    assert all(one["volumes"] == [f"accelerators:{FOLDER}"] for one in services().values())
    (made,) = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if "install -d -o marlaas" in line]
    assert FOLDER in made.split()


def test_services_that_are_added_extend_those_of_the_deployment() -> None:
    deployed = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for name, service in services().items():
        assert name in deployed or service["extends"] == {"file": "docker-compose.yml", "service": name.partition("-")[0]}
        assert name.partition("-")[0] in deployed


def test_each_executor_fits_on_the_accelerator_by_its_own_estimate(tmp_path: Path) -> None:
    """Otherwise it would never wake. `second` also with the states of two more tasks in its trainer."""
    pools = read_pools(EXAMPLE / "pools.toml")
    (accelerator,) = read_accelerators(EXAMPLE / "pools.toml", pools).values()
    assert accelerator.memory_gib is not None
    folders = {"models/tiny": ROOT / "models" / "tiny", "Qwen/Qwen3-0.6B": stored(tmp_path, QWEN3_0_6B)}
    for pool in pools.values():
        local = pool.model_copy(update={"model": str(folders[pool.model])})
        needs = MemoryNeeds.of_folder(local, on_cpu=True)
        assert needs.shape is not None
        states = 2 * STATE_VECTORS * needs.shape.adapter_parameters(pool.max_rank) * ELEMENT_BYTES["float32"]
        assert needs.awake_bytes([pool.max_rank]) + states < accelerator.memory_gib * GIB, pool.model
        assert local.context_tokens <= local.train_tokens
        least = needs.shape.parameters * ELEMENT_BYTES["float32"] + pool.kv_cache_gib * GIB
        assert least < sampler_bytes(local) < accelerator.memory_gib * GIB, pool.model


def sampler_bytes(pool: Pool) -> int:
    return expected_sizes(EngineSettings.of(pool, device="cpu", sleeps=True), None).total


def stored(folder: Path, config: Mapping[str, Any]) -> Path:
    """A folder of this shape, whose weights are a hole in the file system, in bfloat16 as they are published."""
    (folder / "config.json").write_text(json.dumps(config))
    shape = ModelShape.of(config)
    assert shape is not None
    size = shape.parameters * ELEMENT_BYTES["bfloat16"]
    header = json.dumps({"all": {"dtype": "BF16", "shape": [shape.parameters], "data_offsets": [0, size]}}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    return folder
