"""How the pools of a workload share a core: each alone on it, all awake at once, or in turns under a policy."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.plex.real.workloads import PoolLoad, Workload

ACCELERATOR = "core"
"""Its name."""
CORE = 1
"""The accelerator."""
OTHERS_CORE = 0
"""Of everything else."""
GPU_MEMORY_SHARE = 0.4
"""Of a GPU, for each pool's sampler."""


@dataclass(frozen=True)
class Arm:
    """`options`: of the accelerator; None: the pools' processes are their own, and all on the core."""

    name: str
    options: Mapping[str, str | float] | None
    dedicated: bool = False
    """Each pool's tasks run alone, one pool after another."""

    @property
    def file_name(self) -> str:
        return self.name.replace(" ", "-")


DEDICATED = Arm("dedicated", None, dedicated=True)
AWAKE = Arm("all-awake", None)
FCFS = Arm("fcfs", {"policy": "fcfs"})
RATIO = Arm("ratio", {"policy": "ratio"})
ARMS = (
    DEDICATED,
    AWAKE,
    FCFS,
    RATIO,
    Arm("ratio without residency", {"policy": "ratio", "residency": 0.0}),
)
ALL = {one.name: one for one in ARMS}


def named(name: str) -> Arm:
    """Raises: ValueError for a name that is no arm's."""
    if name not in ALL:
        raise ValueError(f"{name!r} is no arm; there are {', '.join(ALL)}")
    return ALL[name]


def pools_file(
    folder: Path, bases: Mapping[str, Path], pools: Sequence[PoolLoad], arm: Arm, workload: Workload, device: str = "cpu"
) -> Path:
    """The pools file of one stack. On a GPU, `GPU_MEMORY_SHARE` is the budget into which two pools do not fit."""
    lines: list[str] = []
    if arm.options is not None:
        lines += [f"[accelerator.{ACCELERATOR}]", f'device = "{device}"']
        if device == "cpu":
            lines += [f'cores = "{CORE}"', f"memory_gib = {workload.memory_gib}"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in arm.options.items()]
    for one in pools:
        lines += [f"[{one.base}]", f'model = "{bases[one.base]}"', "context_tokens = 512", "max_rank = 8", "adapters = 4"]
        lines += ["sequences = 16", f"kv_cache_gib = {one.kv_cache_gib}", "train_tokens = 1024"]
        if device != "cpu":
            lines.append(f"gpu_memory_share = {GPU_MEMORY_SHARE}")
        if arm.options is not None:
            lines.append(f'on = "{ACCELERATOR}"')
    path = folder / "pools.toml"
    path.write_text("\n".join([*lines, ""]))
    return path


def settings(arm: Arm, device: str = "cpu") -> dict[str, str]:
    """Settings of the services: without a shared accelerator samplers and trainers are pinned to its core."""
    if device != "cpu" or arm.options is not None:
        return {}
    return {"MARLAAS_ROLLOUT_CORES": str(CORE), "MARLAAS_TRAINER_CORES": str(CORE), "MARLAAS_TRAINER_THREADS": "1"}
