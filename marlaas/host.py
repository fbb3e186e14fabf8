"""`marlaas doctor --machine`: what this machine has, what each process of the pools file needs of it, and what is wrong."""

import json
import os
import shutil
from pathlib import Path

from common.pools import read_accelerators, read_pools
from common.pools.memory import GIB, machine_bytes
from marlaas.memory import memory_needs
from marlaas.stack import first_start, servers
from marlaas.stack.devices import find_gpus, installed_builds
from marlaas.stack.placement import objections, this_machine

RULE = "this machine has what the pools file needs"


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
    for gpu in find_gpus()[0]:
        lines.append(f"{gpu}: compute capability {gpu.compute_capability}, driver {gpu.driver_version}, MIG {gpu.mig_mode or 'none'}")
    lines += [str(installed_builds() or "no PyTorch and vLLM"), f"pools without a shared accelerator compute on {machine}"]
    lines += [said for said, _ in needs]
    lines += ["", f"{'BROKEN  ' if wrong else 'holds   '}  {RULE}", *(f"            {one}" for one in wrong)]
    return "\n".join(lines), bool(wrong)
