"""Samplers and trainers of a one-machine stack, each pool's own or on a shared accelerator, with the cores and GPUs of each.

Both use every core by default. Without a GPU they would slow each other down at every thread barrier, so each gets its own
cores; the scheduler, the environments and the servers need little and share them. With a GPU nothing is pinned. Several GPUs
are assigned round robin: by default all processes would use the first.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common.pools import Accelerator, Accelerators, Pools, cpu_cores


@dataclass(frozen=True)
class Machine:
    cores: tuple[int, ...]
    """Numbers of the cores available to this process."""
    gpus: tuple[str, ...] = ()
    """GPU numbers or UUIDs, in the format of CUDA_VISIBLE_DEVICES."""


@dataclass(frozen=True)
class Share:
    """Cores and GPUs of one pool's rollout and trainer. Empty: no restriction."""

    rollout: tuple[int, ...] = ()
    """Core numbers."""
    trainer: tuple[int, ...] = ()
    rollout_gpu: str = ""
    trainer_gpu: str = ""


def this_machine() -> Machine:
    return Machine(tuple(sorted(os.sched_getaffinity(0))), gpus())


def has_gpu() -> bool:
    """Whether this process may use an NVIDIA GPU."""
    return bool(gpus())


def objection(accelerators: Accelerators, machine: Machine) -> str | None:
    """Requirement of a shared accelerator in the pools file that this machine does not meet; None if it meets all."""
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
    """`count` cores from `start`, wrapping around if the machine has fewer."""
    return tuple(cores[(start + offset) % len(cores)] for offset in range(count))


Executing = Literal["rollout", "trainer"]


@dataclass(frozen=True)
class Executor:
    """A sampler or trainer of the stack."""

    name: str
    service: Executing
    env: dict[str, str]
    leaves: tuple[int, ...] = ()
    """Cores on which the process does not start: those of all shared CPUs if the machine has others, else its own accelerator's. Only the
    computing threads are pinned to the latter.
    """


def executors(data: Path, pools: Pools, accelerators: Accelerators, machine: Machine) -> Iterator[Executor]:
    """Every sampler and trainer. Pools without a shared accelerator divide the cores that belong to no accelerator, if there are any."""
    shared = cpu_cores(accelerators)
    free = tuple(core for core in machine.cores if core not in shared)
    own = Machine(free or machine.cores, machine.gpus)
    alone = [name for name, pool in pools.items() if not (pool.samplers_on and pool.trainers_on)]
    of_pool = dict(zip(alone, shares(own, len(alone)), strict=True))
    for name, pool in pools.items():
        both: tuple[tuple[Executing, tuple[str, ...]], ...] = (("rollout", pool.samplers_on), ("trainer", pool.trainers_on))
        for service, on in both:
            if not on:
                yield Executor(f"{service}-{name}", service, _pool_env(service, name) | _own_env(service, of_pool[name]))
            for each in on:
                env = _pool_env(service, name) | _shared_env(service, each, accelerators[each], data)
                leaves = () if not accelerators[each].on_cpu else tuple(sorted(shared)) if free else accelerators[each].cores
                yield Executor(f"{service}-{name}" if len(on) == 1 else f"{service}-{name}-{each}", service, env, leaves)


def _pool_env(service: Executing, pool: str) -> dict[str, str]:
    return {f"MARLAAS_{service.upper()}_POOL": pool}


def _own_env(service: Executing, share: Share) -> dict[str, str]:
    cores, gpu = (share.rollout, share.rollout_gpu) if service == "rollout" else (share.trainer, share.trainer_gpu)
    return _cores_env(service, cores) | ({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})


def _shared_env(service: Executing, name: str, accelerator: Accelerator, data: Path) -> dict[str, str]:
    found = {f"MARLAAS_{service.upper()}_ACCELERATOR": name, "MARLAAS_ACCELERATORS_DIR": str(data / "accelerators")}
    found |= _cores_env(service, accelerator.cores)
    if accelerator.on_cpu:
        return found | {f"MARLAAS_{service.upper()}_DEVICE": "cpu"}
    return found | {"CUDA_VISIBLE_DEVICES": accelerator.device.removeprefix("cuda:")}


def _cores_env(service: Executing, cores: tuple[int, ...]) -> dict[str, str]:
    found = {f"MARLAAS_{service.upper()}_CORES": ",".join(map(str, cores))}
    if service == "trainer" and cores:
        found["MARLAAS_TRAINER_THREADS"] = str(len(cores))
    return found
