"""Samplers and trainers of a one-machine stack: each pool's own, and those that take turns on a shared accelerator."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common.pools import Accelerator, Accelerators, Pools, cpu_cores
from marlaas.stack.placement import Machine, Share, shares

Service = Literal["rollout", "trainer"]


@dataclass(frozen=True)
class Process:
    """A sampler or trainer of the stack."""

    name: str
    service: Service
    env: dict[str, str]
    leaves: tuple[int, ...] = ()
    """Cores of all shared CPUs, of which it uses its own, for what computes alone; only those where the machine has no others."""


def processes(data: Path, pools: Pools, accelerators: Accelerators, machine: Machine) -> Iterator[Process]:
    """Every sampler and trainer. Pools without a shared accelerator divide the cores that no accelerator has, if there are any."""
    shared = cpu_cores(accelerators)
    free = tuple(core for core in machine.cores if core not in shared)
    own = Machine(free or machine.cores, machine.gpus)
    alone = [name for name, pool in pools.items() if not (pool.samplers_on and pool.trainers_on)]
    of_pool = dict(zip(alone, shares(own, len(alone)), strict=True))
    for name, pool in pools.items():
        executors: tuple[tuple[Service, tuple[str, ...]], ...] = (("rollout", pool.samplers_on), ("trainer", pool.trainers_on))
        for service, on in executors:
            if not on:
                yield Process(f"{service}-{name}", service, _pool_env(service, name) | _own_env(service, of_pool[name]))
            for each in on:
                env = _pool_env(service, name) | _shared_env(service, each, accelerators[each], data)
                leaves = () if not accelerators[each].on_cpu else tuple(sorted(shared)) if free else accelerators[each].cores
                yield Process(f"{service}-{name}" if len(on) == 1 else f"{service}-{name}-{each}", service, env, leaves)


def _pool_env(service: Service, pool: str) -> dict[str, str]:
    return {f"MARLAAS_{service.upper()}_POOL": pool}


def _own_env(service: Service, share: Share) -> dict[str, str]:
    cores, gpu = (share.rollout, share.rollout_gpu) if service == "rollout" else (share.trainer, share.trainer_gpu)
    return _cores_env(service, cores) | ({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})


def _shared_env(service: Service, name: str, accelerator: Accelerator, data: Path) -> dict[str, str]:
    found = {f"MARLAAS_{service.upper()}_ACCELERATOR": name, "MARLAAS_ACCELERATORS_DIR": str(data / "accelerators")}
    found |= _cores_env(service, accelerator.cores)
    if accelerator.on_cpu:
        return found | {f"MARLAAS_{service.upper()}_DEVICE": "cpu"}
    return found | {"CUDA_VISIBLE_DEVICES": accelerator.device.removeprefix("cuda:")}


def _cores_env(service: Service, cores: tuple[int, ...]) -> dict[str, str]:
    found = {f"MARLAAS_{service.upper()}_CORES": ",".join(map(str, cores))}
    if service == "trainer" and cores:
        found["MARLAAS_TRAINER_THREADS"] = str(len(cores))
    return found
