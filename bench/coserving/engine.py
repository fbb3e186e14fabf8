"""Engines of arms: the tiny model, with an arm's arguments for vLLM or an arm's `decide`.

Each arm has a process of its own, on one core; those that are not measured are idle. Pools without serving have `SEATS` sequences. Those
that serve have as many for rollouts, and `SERVED` more.
"""

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bench.engine import write_adapter
from bench.harness.report import ROOT
from common.pools import Goals, read_pools
from rollout_svc.coserving import figures
from rollout_svc.engine import start
from rollout_svc.engine.config import EngineSettings, engine_arguments
from rollout_svc.engine.engine import Engine

SEATS, SERVED = 64, 16
TASKS = 6
"""Tasks whose steps are sampled, each with an adapter; a further adapter is served."""
LENIENT = Goals(60.0, 60.0)
"""Goals of the settings, so that each engine starts; those of an arm come with each request."""
POOL = read_pools(ROOT / "pools.toml")["tiny"]
KV_GIB = 0.125
"""65,000 tokens of the tiny model: more than all sequences need."""
FULL_TASKS = 8
FULL: dict[str, Any] = {"tasks": FULL_TASKS, "adapters": FULL_TASKS // 2, "adapters_held": 4 * FULL_TASKS, "kv_cache_gib": 0.0125}
"""A cache of 6,500 tokens, which all sequences fill, and twice as many tasks as adapter slots."""
PLAIN, FCFS, TODAY = "plain", "order", "today"
"""vLLM with priorities; in its default order; the product's class without goals."""

ARM = "bench_arm"
"""Key in vLLM's `additional_config`: the arm's name, and the file for counts."""
WRONG = "wrong-by-half"
"""Beginning of the id of a request with which the step time model is made wrong: as if all steps so far had taken half as long."""


@dataclass(frozen=True)
class ArmEngine:
    """A running engine and what its arm exchanges."""

    name: str
    engine: Engine
    counts: Path
    folder: Path
    tasks: int = TASKS

    @property
    def has_goals(self) -> bool:
        return self.engine.settings.goals is not None

    @cached_property
    def adapters(self) -> list[str]:
        """Names of the loaded ones: the served one first."""
        return ["served", *(f"task-{number}" for number in range(self.tasks))]

    async def load(self, name: str, number: int) -> Path:
        """Load an adapter with random weights of that number, which are written once for all engines."""
        path = self.folder / f"adapter-{number}"
        if not path.exists():
            write_adapter(Path(self.engine.settings.model), path, number, self.engine.settings.max_rank)
        await self.engine.load(name, path)
        return path

    def figures(self) -> dict[str, float]:
        """Counts of the engine's process, the product's and the benchmark's."""
        found = figures.read(self.engine.settings.figures) if self.has_goals else None
        counts = json.loads(self.counts.read_text()) if self.counts.exists() else {}
        return {**(asdict(found) if found is not None else {}), **counts}


def settings(name: str, device: str, folder: Path, **changes: Any) -> EngineSettings:
    """Settings of an arm. `changes`: of its fields, `sequences` and `adapters` being those of rollouts."""
    cores = (min(os.sched_getaffinity(0)),) if device == "cpu" else ()
    pool = POOL.model_copy(update={"sequences": SEATS, "kv_cache_gib": KV_GIB, "serving": None})
    made = replace(EngineSettings.of(pool, device="cuda" if device == "cuda" else "cpu", cores=cores), **changes)
    if name in (PLAIN, FCFS):
        return made
    made = replace(made, sequences=made.sequences + SERVED, adapters=made.adapters + 1, serving_sequences=SERVED, serving_adapters=1)
    return made if name == TODAY else replace(made, goals=LENIENT, training_share=0.1, figures=folder / f"{name}.figures")


@asynccontextmanager
async def arm_engine(name: str, device: str, folder: Path, tasks: int = TASKS, **changes: Any) -> AsyncGenerator[ArmEngine]:
    """The arm's engine, warm, with its adapters."""
    made, counts = settings(name, device, folder, **changes), folder / f"{name}.json"

    def arguments(wanted: EngineSettings, *, cpu: bool) -> Any:
        found = engine_arguments(wanted, cpu=cpu)
        if name == FCFS:
            found.scheduling_policy = "fcfs"
        if name not in (PLAIN, FCFS):
            found.scheduler_cls = f"bench.coserving.scheduler.{'PreemptingScheduler' if name == TODAY else 'GoalsScheduler'}"
            found.additional_config[ARM] = {"name": name, "file": str(counts)}
        return found

    start.engine_arguments = arguments  # the only place where an arm differs from the product
    try:
        engine = await Engine.start(made)
    finally:
        start.engine_arguments = engine_arguments
    try:
        await engine.warm_up()
        arm = ArmEngine(name, engine, counts, folder, tasks)
        for number, adapter in enumerate(arm.adapters):
            await arm.load(adapter, number)
        yield arm
    finally:
        engine.process.close()


@asynccontextmanager
async def arm_engines(names: Iterable[str], device: str, **changes: Any) -> AsyncGenerator[Mapping[str, ArmEngine]]:
    """Engines of all these arms. Inside the block this process stays off their core."""
    before = os.sched_getaffinity(0)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="marlaas-bench-")))
        found = {name: await stack.enter_async_context(arm_engine(name, device, folder, **changes)) for name in names}
        stack.callback(os.sched_setaffinity, 0, before)
        if device == "cpu" and len(before) > 1:
            os.sched_setaffinity(0, before - {min(before)})
        await asyncio.sleep(0.2)
        yield found
