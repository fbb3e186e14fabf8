"""Which cores, or which GPU, the rollout engine and the trainer of a one-machine stack may use.

Both are written to use every core. On a small machine without a GPU they would take turns at each other's expense, a
thread barrier at a time, so each gets cores of its own; the scheduler, the environments and the servers need little and
fit in between. On a GPU neither computes on cores, and nothing is pinned. Where there are several GPUs, they go round:
left to themselves, all processes would use the first.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    cores: tuple[int, ...]
    """Numbers of the cores that this process may use."""
    gpus: tuple[str, ...] = ()
    """As CUDA_VISIBLE_DEVICES names them: numbers, or UUIDs."""


@dataclass(frozen=True)
class Share:
    """What one pool's rollout and trainer may use. Empty: whatever they find."""

    rollout: tuple[int, ...] = ()
    """Cores."""
    trainer: tuple[int, ...] = ()
    rollout_gpu: str = ""
    trainer_gpu: str = ""


def this_machine() -> Machine:
    return Machine(tuple(sorted(os.sched_getaffinity(0))), gpus())


def has_gpu() -> bool:
    """Whether an NVIDIA GPU answers that this process may use."""
    return bool(gpus())


def gpus() -> tuple[str, ...]:
    """The NVIDIA GPUs that answer, or those of them that CUDA_VISIBLE_DEVICES allows."""
    if shutil.which("nvidia-smi") is None:
        return ()
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=20, check=False).stdout.splitlines()
    found = tuple(str(number) for number in range(sum(line.startswith(b"GPU") for line in listed)))
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None or not found:
        return found
    return tuple(name.strip() for name in allowed.split(",") if name.strip() not in ("", "-1"))


def shares(machine: Machine, pools: int) -> list[Share]:
    """One share per pool.

    Without a GPU: half of its cores for sampling, half for training, at least one of each. With several: each process takes the
    next one, so that two pools on four GPUs meet nowhere, and a pool on two samples on one and trains on the other.
    """
    if pools == 0:
        return []
    if machine.gpus:
        found = machine.gpus
        if len(found) == 1:
            return [Share() for _ in range(pools)]
        return [
            Share(rollout_gpu=found[2 * number % len(found)], trainer_gpu=found[(2 * number + 1) % len(found)]) for number in range(pools)
        ]
    cores = machine.cores
    each = max(1, len(cores) // (2 * pools))
    return [Share(_slice(cores, 2 * number * each, each), _slice(cores, (2 * number + 1) * each, each)) for number in range(pools)]


def _slice(cores: tuple[int, ...], start: int, count: int) -> tuple[int, ...]:
    """`count` cores from `start` on, going round where the machine has fewer than are asked for."""
    return tuple(cores[(start + offset) % len(cores)] for offset in range(count))
