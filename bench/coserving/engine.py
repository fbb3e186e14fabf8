"""Engines of arms, each with an arm's arguments for vLLM or an arm's `decide`, in a process of its own, all on one core.

Pools without serving have `SEATS` sequences; those that serve have as many for rollouts, and `SERVED` more.
"""

import gc
import json
import os
import tempfile
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.engine import write_adapter
from bench.harness.report import ROOT
from common.pools import Goals, read_pools
from rollout_svc.coserving import figures
from rollout_svc.engine import start
from rollout_svc.engine.config import GOALS, EngineSettings, engine_arguments
from rollout_svc.engine.engine import Engine

SEATS, SERVED, TASKS = 64, 16, 6
LENIENT = Goals(60.0, 60.0)
"""Goals of the settings, so that each engine starts; those of an arm come with each request."""
PLAIN, FCFS, TODAY = "plain", "order", "today"
"""Arms without goals: vLLM with priorities, and in its default order; rollouts preempted for requests."""
CHANGES = {"sequences": SEATS, "kv_cache_gib": 0.125, "gpu_memory_share": 0.08, "serving": None}
"""A cache of 65,000 tokens, more than all sequences need; on a GPU a share with which all arms fit."""
POOL = read_pools(ROOT / "pools.toml")["tiny"].model_copy(update=CHANGES)
FULL = {"tasks": 8, "adapters": 4, "adapters_held": 32, "kv_cache_gib": 0.0125}
"""A cache of 6,500 tokens, which all sequences fill, and twice as many tasks as adapter slots."""
COUNTS = ".json"
WRONG = "wrong-by-half"
"""Beginning of the id of a request with which the step time model is made wrong: as if all steps so far had taken half as long."""


@dataclass(frozen=True)
class Arm:
    """A running engine. Adapters are `served`, and `task-N` for each task."""

    engine: Engine
    tasks: int
    folder: Path

    @property
    def has_goals(self) -> bool:
        return self.engine.settings.goals is not None

    async def load(self, name: str, number: int) -> None:
        """Load an adapter with random weights of that number."""
        path, settings = self.folder / f"adapter-{number}", self.engine.settings
        if not path.exists():
            write_adapter(Path(settings.model), path, number, settings.max_rank)
        await self.engine.load(name, path)

    def figures(self) -> dict[str, float]:
        """Counts of the engine's process, the product's and the benchmark's; empty without goals."""
        path = self.engine.settings.figures
        found = figures.read(path) if self.has_goals else None
        return asdict(found) | json.loads(path.with_suffix(COUNTS).read_text()) if found is not None else {}


@asynccontextmanager
async def engines(names: Iterable[str], device: str, tasks: int = TASKS, **changes: Any) -> AsyncGenerator[Mapping[str, Arm]]:
    """Arms with their adapters by name; inside the block this process stays off their core. `changes`: of fields of the settings."""
    before = os.sched_getaffinity(0)
    async with AsyncExitStack() as stack:
        folder, found = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="marlaas-bench-"))), dict[str, Arm]()
        for name in names:
            engine = await Engine.start(_prepared(name, device, folder, **changes))
            stack.callback(gc.unfreeze)  # a closed engine freezes the others' objects, which would then be freed at exit
            stack.callback(engine.process.close)
            await engine.warm_up()
            found[name] = Arm(engine, tasks, folder)
            for number in range(1 + tasks):
                await found[name].load(f"task-{number - 1}" if number else "served", number)
        stack.callback(setattr, start, "engine_arguments", engine_arguments)
        stack.callback(os.sched_setaffinity, 0, before)
        if device == "cpu" and len(before) > 1:
            os.sched_setaffinity(0, before - {min(before)})
        yield found


def _prepared(name: str, device: Any, folder: Path, **changes: Any) -> EngineSettings:
    """Settings of the arm's engine; the next one that starts has the arm's arguments."""
    made = replace(EngineSettings.of(POOL, device=device, cores=(min(os.sched_getaffinity(0)),) if device == "cpu" else ()), **changes)
    if name not in (PLAIN, FCFS):
        made = replace(made, sequences=made.sequences + SERVED, adapters=made.adapters + 1, serving_sequences=SERVED, serving_adapters=1)
        if name != TODAY:
            made = replace(made, goals=LENIENT, training_share=0.1, figures=folder / f"{name}.figures")

    def arguments(settings: EngineSettings, *, cpu: bool) -> Any:
        found = engine_arguments(settings, cpu=cpu)
        found.scheduling_policy = "fcfs" if name == FCFS else found.scheduling_policy
        if settings.goals is not None:
            found.scheduler_cls = "bench.coserving.scheduler.ArmScheduler"
            found.additional_config[GOALS]["arm"] = name
        return found

    start.engine_arguments = arguments
    return made
