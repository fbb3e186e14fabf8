"""Placement of a one-machine stack: cores and GPUs of the rollout engine and the trainer.

Both use every core by default. Without a GPU they would slow each other down at every thread barrier, so each gets its own
cores; the scheduler, the environments and the servers need little and share them. With a GPU nothing is pinned. Several GPUs
are assigned round robin: by default all processes would use the first.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass

from common.pools import Accelerators


@dataclass(frozen=True)
class Machine:
    cores: tuple[int, ...]
    """Core numbers available to this process."""
    gpus: tuple[str, ...] = ()
    """Numbers or UUIDs, in the form of CUDA_VISIBLE_DEVICES."""


@dataclass(frozen=True)
class Share:
    """Cores and GPUs of one pool's rollout and trainer. Empty: no restriction."""

    rollout: tuple[int, ...] = ()
    """Cores."""
    trainer: tuple[int, ...] = ()
    rollout_gpu: str = ""
    trainer_gpu: str = ""


def this_machine() -> Machine:
    return Machine(tuple(sorted(os.sched_getaffinity(0))), gpus())


def has_gpu() -> bool:
    """Whether this process may use an NVIDIA GPU."""
    return bool(gpus())


def objection(accelerators: Accelerators, machine: Machine) -> str | None:
    """What a shared accelerator of the pools file wants that the machine lacks; None where it has all."""
    for name, one in accelerators.items():
        if absent := sorted(set(one.cores).difference(machine.cores)):
            return f"accelerator.{name}.cores has {absent[0]}, but this machine has {', '.join(map(str, machine.cores))}"
        number = one.device.removeprefix("cuda:")
        if not one.on_cpu and (not machine.gpus or (number.isdigit() and int(number) >= len(machine.gpus))):
            return f"accelerator.{name}.device is '{one.device}', but `nvidia-smi -L` lists {len(machine.gpus) or 'no'} GPUs here"
    return None


def gpus() -> tuple[str, ...]:
    """NVIDIA GPUs that respond and that CUDA_VISIBLE_DEVICES allows."""
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

    Without a GPU: half of its cores for sampling, half for training, at least 1 each. With several: each process takes the next
    one, so two pools on four GPUs share none, and a pool on two samples on one and trains on the other.
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
    """`count` cores from `start`, wrapping around where the machine has fewer."""
    return tuple(cores[(start + offset) % len(cores)] for offset in range(count))
