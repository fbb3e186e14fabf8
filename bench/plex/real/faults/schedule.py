"""Runs, and the faults of each."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

from bench.plex.real.faults import points, resources, servers, stores
from bench.plex.real.faults.scene import Scene
from bench.plex.real.faults.tasks import Endless
from bench.plex.real.workloads import PoolLoad, Workload
from common.resilience.crashpoints import LEASES, SLICES

LOADS = (PoolLoad("small", 3, 0.6, tasks=2, kv_cache_gib=0.6), PoolLoad("middle", 3, 0.6, tasks=2, kv_cache_gib=0.6))
WORKLOAD = Workload("faults", LOADS, memory_gib=1.15)
"""Either pool has room, and not both."""
SERVICES = ("rollout", "trainer")
POINTS = tuple(product(LEASES, SERVICES))
REPEATED = 5
KILLS_A_RUN = 7
HANGS_A_RUN = 3
ON_DISK = {"host_gib": 0.001}
"""Of the accelerator: no state fits into host memory, so that each park is to disk, and each wake reads the model's folder."""


@dataclass(frozen=True)
class Fault:
    """One fault of a kind; what it returns are its figures."""

    kind: str
    do: Callable[[Scene], Awaitable[dict[str, Any]]]


@dataclass(frozen=True)
class Run:
    """Faults one after another in one stack."""

    name: str
    faults: Sequence[Fault]
    then: Callable[[Scene, Endless], Awaitable[dict[str, Any]]] | None = None
    """After all tasks have finished, and with tasks of its own."""
    options: Mapping[str, str | float] = field(default_factory=dict[str, str | float])
    """Of the accelerator."""
    refills: bool = False
    """Whether groups in flight become void and are refilled, so that a task may train on others than undisturbed. One that did is
    replayed from its recorded batches."""


REFERENCE = Run("undisturbed", ())


def whole() -> list[Run]:
    """All faults. Executors take turns to be killed, so that none dies again before it has long been ready."""
    kills = [_at(points.kill, "kill", point, service, number) for number in range(REPEATED) for point, service in POINTS]
    hangs = [_at(points.hang, "hang", point, service, 0) for point, service in POINTS]
    return [
        *_runs("kills", kills, KILLS_A_RUN),
        *_runs("hangs", hangs, HANGS_A_RUN),
        Run("servers", [*_silences(5.0, 60.0), _server_kill("nats"), *_decisions()]),
        Run("resources", [*_stops(), *_shortages(), _locked_out()]),
        _restored(),
        Run("models", [_trainer_without_memory(), _no_model("middle"), _no_model("small")], then=_poison, options=ON_DISK),
    ]


def small() -> list[Run]:
    """A cut of all, whose numbers mean nothing."""
    kills = [("lease_in_wake", "rollout"), ("lease_in_park", "trainer")]
    return [Run("kills", [_at(points.kill, "kill", point, service, 0) for point, service in kills]), _restored()]


def _runs(name: str, faults: Sequence[Fault], size: int) -> list[Run]:
    return [Run(f"{name}-{begin // size}", faults[begin : begin + size]) for begin in range(0, len(faults), size)]


def _at(do: Callable[[Scene, str, str], Awaitable[dict[str, Any]]], what: str, point: str, service: str, number: int) -> Fault:
    executor = f"{service}-{LOADS[(number + LEASES.index(point)) % len(LOADS)].base}"
    return Fault(f"{what} {point} {service}", lambda scene: do(scene, executor, point))


def _silences(*nats_s: float) -> list[Fault]:
    away = [("nats", seconds) for seconds in nats_s] + [("postgres", 15.0)]
    return [Fault(f"{server} silent {seconds:g} s", partial(servers.silent, server=server, seconds=seconds)) for server, seconds in away]


def _server_kill(server: str) -> Fault:
    return Fault(f"kill {server}", partial(servers.kill, server=server))


def _restored() -> Run:
    """Each store is restored to an older copy."""
    return Run("restored", [Fault(f"restored {server}", partial(stores.restored, server=server)) for server in stores.OLDER], refills=True)


def _decisions() -> list[Fault]:
    return [_server_kill("postgres"), *(Fault(f"kill scheduler {point}", partial(servers.kill_scheduler, point=point)) for point in SLICES)]


def _stops() -> list[Fault]:
    return [Fault(f"stop {service}", partial(points.stop, executor=f"{service}-middle")) for service in SERVICES]


def _shortages() -> list[Fault]:
    samplers = [f"rollout-{load.base}" for load in LOADS]
    return [Fault(f"no memory sampler, {n}", partial(resources.no_memory, executors=samplers, attempts=n)) for n in (1, 2)]


def _trainer_without_memory() -> Fault:
    """The larger one, from the tier disk: from host memory its weights are mapped as they are, and the small one's fit what is left."""
    return Fault("no memory trainer, 1", partial(resources.no_memory, executors=["trainer-middle"], attempts=1))


def _locked_out() -> Fault:
    return Fault("read-only locks", partial(resources.read_only_locks, executor="rollout-small"))


def _no_model(pool: str) -> Fault:
    return Fault(f"no model {pool}", partial(resources.no_model, pool=pool))


async def _poison(scene: Scene, tasks: Endless) -> dict[str, Any]:
    return await resources.poison(scene, "small", "middle", tasks)
