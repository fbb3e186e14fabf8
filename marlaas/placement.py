"""Which cores the rollout engine and the trainer of a one-machine stack may use.

Both are written to use every core. On a small machine without a GPU they would take turns at each other's expense, a
thread barrier at a time, so each gets cores of its own; the scheduler, the environments and the servers need little and
fit in between. On a GPU neither computes on cores, and nothing is pinned.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    cores: tuple[int, ...]
    """Numbers of the cores that this process may use."""
    has_gpu: bool


@dataclass(frozen=True)
class Share:
    """Cores of one pool's rollout and trainer. Empty: whatever they find."""

    rollout: tuple[int, ...] = ()
    trainer: tuple[int, ...] = ()


def this_machine() -> Machine:
    return Machine(tuple(sorted(os.sched_getaffinity(0))), has_gpu())


def has_gpu() -> bool:
    """Whether an NVIDIA GPU answers."""
    if shutil.which("nvidia-smi") is None:
        return False
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=20).stdout.startswith(b"GPU")


def shares(machine: Machine, pools: int) -> list[Share]:
    """One share per pool: half of its cores for sampling, half for training, at least one of each."""
    if machine.has_gpu or pools == 0:
        return [Share() for _ in range(pools)]
    cores = machine.cores
    each = max(1, len(cores) // (2 * pools))
    return [Share(_slice(cores, 2 * number * each, each), _slice(cores, (2 * number + 1) * each, each)) for number in range(pools)]


def _slice(cores: tuple[int, ...], start: int, count: int) -> tuple[int, ...]:
    """`count` cores from `start` on, going round where the machine has fewer than are asked for."""
    return tuple(cores[(start + offset) % len(cores)] for offset in range(count))
