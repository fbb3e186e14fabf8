"""Shared accelerators of the pools file, and the rules for placing pools on them.

[accelerator.a]
device = "cpu"              # or "cuda:0", or a GPU's UUID
cores = "1"
memory_gib = 2.0

[tiny]
on = "a"                    # its sampler and its trainer; or `generate_on` and `train_on`, each a list
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from common.accelerators import Policy, executor_name
from common.errors import Fatal
from common.formats.cores import Cores
from common.formats.toml_file import TomlFileError, read_tables
from common.formats.wrong_values import described
from common.pools.pool import Pool
from common.spec import Name

TABLE = "accelerator"
"""Name of the table of accelerators in the pools file; reserved, so no pool can have it."""

DEVICE = described(r"^(cpu|cuda:\d{1,2}|GPU-[0-9a-fA-F-]{8,64})$", "cpu, cuda:N, or the UUID of a whole GPU: MIG devices cannot be shared")


class Accelerator(BaseModel):
    """Devices that are leased as a whole, to one sampler or trainer at a time."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    device: Annotated[str, Field(pattern=DEVICE)]
    """`cpu`, `cuda:N`, or the UUID of a GPU (`nvidia-smi -L`)."""
    cores: Cores = ()
    """Cores of its executors, as `0,2-3`. On a CPU they are the accelerator and must be given; computing threads are pinned to them. On a
    GPU, its trainers are pinned, and its samplers are not.
    """
    memory_gib: Annotated[float, Field(gt=0)] | None = None
    """Device memory that all its executors may use together. None, on a GPU only: the device's memory minus 5 %."""
    host_gib: float = Field(default=16.0, gt=0)
    """Host memory for the state of parked executors; beyond it state goes to disk."""
    max_wait_s: float = Field(default=60.0, gt=0)
    """Seconds of waiting after which an executor is overdue, and precedes all that are not."""
    residency: float = Field(default=4.0, ge=0)
    """Minimum time for which an executor stays awake while it has work, as a multiple of the switch to it."""
    policy: Policy = Policy.RATIO
    """How the next executor is chosen: `ratio`, or `fcfs`, first come first served."""

    @property
    def on_cpu(self) -> bool:
        return self.device == "cpu"


Accelerators = dict[str, Accelerator]
_ADAPTER = TypeAdapter(dict[Literal["accelerator"], dict[Name, Accelerator]])


class Place(BaseModel):
    """An executor and its accelerator."""

    model_config = ConfigDict(frozen=True)

    accelerator: str
    service: Literal["rollout", "trainer"]
    pool: str

    @property
    def executor(self) -> str:
        return executor_name(self.service, self.pool)


def read_accelerators(path: Path, pools: Mapping[str, Pool]) -> Accelerators:
    """Shared accelerators described in `path`; empty if it has no such table. `pools`: those of the same file.

    Raises: Fatal, naming the file, the pool or accelerator, and the correction.
    """
    try:
        tables = read_tables(path, _ADAPTER, only=(TABLE,))
    except TomlFileError as error:
        raise Fatal(f"pools file {path} {error}; correct it, or set MARLAAS_POOLS_FILE") from None
    found = tables.get(TABLE, {})
    for complaint in (*_unsound(found), *_unplaced(found, pools)):
        raise Fatal(f"pools file {path} is wrong: {complaint}")
    return found


def cpu_cores(accelerators: Mapping[str, Accelerator]) -> frozenset[int]:
    """All cores that are shared accelerators."""
    return frozenset(core for one in accelerators.values() if one.on_cpu for core in one.cores)


def places(pools: Mapping[str, Pool]) -> list[Place]:
    """Every executor on a shared accelerator, in the order of the file."""
    found: list[Place] = []
    for name, pool in pools.items():
        found += [Place(accelerator=each, service="rollout", pool=name) for each in pool.samplers_on]
        found += [Place(accelerator=each, service="trainer", pool=name) for each in pool.trainers_on]
    return found


Named = dict[tuple[str, str], tuple[str, ...]]
"""Service and pool → names of its replicas."""


def named_replicas(pools: Mapping[str, Pool]) -> Named:
    """Names of samplers (`rollout`) and trainers on shared accelerators: those of the accelerators. If a service has several in a pool, the
    pool's tasks have homes.
    """
    found: Named = {}
    for place in places(pools):
        key = place.service, place.pool
        found[key] = (*found.get(key, ()), place.accelerator)
    return found


def _unsound(accelerators: Mapping[str, Accelerator]) -> list[str]:
    found: list[str] = []
    for name, one in accelerators.items():
        if one.on_cpu and not one.cores:
            found.append(f"accelerator.{name}: on a CPU the cores are the accelerator; give them, as cores = '1'")
        if one.on_cpu and one.memory_gib is None:
            found.append(f"accelerator.{name}: on a CPU give memory_gib, which all its executors may use together")
    taken: dict[int | str, str] = {}
    for name, one in accelerators.items():
        for unit in one.cores if one.on_cpu else (one.device,):
            if unit in taken:
                what = f"core {unit}" if one.on_cpu else f"device {unit}"
                found.append(f"accelerator.{name}: {what} belongs to accelerator.{taken[unit]} already; give each accelerator its own")
            taken[unit] = name
    return found


def _unplaced(accelerators: Mapping[str, Accelerator], pools: Mapping[str, Pool]) -> list[str]:
    known = ", ".join(sorted(accelerators)) or "none"
    executors = Counter(place.accelerator for place in places(pools))
    found: list[str] = []
    for name, pool in pools.items():
        if pool.on is not None and (pool.generate_on or pool.train_on):
            found.append(f"{name}: give `on`, or `generate_on` and `train_on`, not both")
        for each in (*pool.samplers_on, *pool.trainers_on):
            if each not in accelerators:
                found.append(f"{name}: there is no accelerator '{each}'; described: {known}")
        for key, chosen in (("generate_on", pool.samplers_on), ("train_on", pool.trainers_on)):
            if len(set(chosen)) < len(chosen):
                found.append(f"{name}.{key}: an accelerator is named twice")
        on_cpus = [each for each in pool.samplers_on if each in accelerators and accelerators[each].on_cpu]
        if on_cpus and pool.precision == "bfloat16":
            found.append(
                f"{name}: precision = 'bfloat16', but its sampler is on accelerator.{on_cpus[0]}, a shared CPU: vLLM keeps copies of such "
                "weights in its kernels, which no sleep frees; set precision = 'float32', or give the sampler cores of its own"
            )
        shared = [each for each in pool.samplers_on if executors[each] > 1]
        has_goals = pool.serving is not None and pool.serving.goals is not None
        if has_goals and (shared or pool.serve_parked):
            found.append(
                f"{name}: a parked sampler misses every latency goal; give it an accelerator of its own, without serve_parked, or remove "
                "ttft_ms and tpot_ms"
            )
        elif pool.stays_awake and shared:  # one that stays awake leaves no slice to others
            found.append(
                f"{name}: its sampler shares accelerator.{shared[0]}, so requests to its versions wait for a slice; say "
                f"serve_parked = true, or remove [{name}.serving]"
            )
        if pool.serve_parked and not (pool.serving is not None and pool.samplers_on):
            found.append(f"{name}: serve_parked is for a pool with [{name}.serving] whose sampler shares an accelerator; remove it")
        if pool.parked != "auto" and not (pool.samplers_on or pool.trainers_on):
            found.append(f'{name}: parked is for a pool on a shared accelerator; remove it, or say on = "…"')
    return found
