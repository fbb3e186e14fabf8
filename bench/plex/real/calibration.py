"""What a pool's sampler and trainer take alone on the core, by the number of requests at once: for simulations.

A task each of 2, 4, 8 and 16 trajectories a step, whose tools answer at once, so that all its requests are in progress together. Times are
processor seconds on the core, from outside; what is left of a step is passed off the accelerator.
"""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.harness.services import local_stack
from bench.plex.real import arms
from bench.plex.real.recorder import Recorder, executors
from bench.plex.real.runs import trained
from bench.plex.real.workloads import PoolLoad, Workload, task_specs
from marlaas.stack.state_files import Stack

SIZES = (2, 4, 8, 16)
STEPS = 6


@dataclass(frozen=True)
class Costs:
    """Of one base model; seconds."""

    first_s: float
    """A turn of n requests at once takes `first_s` + n · `each_s`."""
    each_s: float
    train_s: float
    """A step of the workload's trajectories."""
    off_s: float
    """Of such a step, what passes neither in sampler nor trainer nor tools."""

    def turn_s(self, requests: int) -> float:
        return self.first_s + requests * self.each_s

    def gain(self, places: int) -> tuple[float, ...]:
        """Work done per second with 1, 2, … requests at once, as a multiple of one alone."""
        return tuple(n * self.turn_s(1) / self.turn_s(n) for n in range(1, places + 1))


Row = dict[str, float]
"""Mean seconds of a step of a size, and of its sampler and trainer."""


def measure(load: PoolLoad, bases: Mapping[str, Path]) -> list[Row]:
    """A row for each size."""
    workload = Workload("calibration", (load,), memory_gib=0.0)
    with tempfile.TemporaryDirectory(prefix="marlaas-plex-") as name:
        file = arms.pools_file(Path(name), bases, [load], arms.DEDICATED, workload)
        with local_stack(file, arms.settings(arms.DEDICATED, workload)) as stack:
            asyncio.run(trained(stack, task_specs(replace(load, tool_s=0.0, tasks=1), 1)))  # engines start
            return [_row(stack, replace(load, size=size, tool_s=0.0, tasks=1)) for size in SIZES]


def _row(stack: Stack, load: PoolLoad) -> Row:
    present = executors(stack)
    with Recorder(lambda: present, None, [arms.CORE]) as recording:
        began_s, ended_s, _ = asyncio.run(trained(stack, task_specs(load, STEPS)))
    last_s = max(ended_s.values())
    busy = recording.busy_s(began_s, last_s)
    of = {kind: sum(spent for name, spent in busy.items() if name.startswith(kind)) for kind in ("rollout", "trainer")}
    step = {"step_s": last_s - began_s, "generate_s": of["rollout"], "train_s": of["trainer"]}
    return {"size": load.size, **{name: round(seconds / STEPS, 4) for name, seconds in step.items()}}


def fitted(load: PoolLoad, rows: Sequence[Row]) -> Costs:
    """Least squares over the sizes; training and the rest are of the workload's own size."""
    each_s, first_s = np.polyfit([row["size"] for row in rows], [row["generate_s"] / load.turns for row in rows], 1)
    own = next(row for row in rows if row["size"] == load.size)
    off_s = own["step_s"] - own["generate_s"] - own["train_s"]
    return Costs(max(0.0, float(first_s)), max(1e-4, float(each_s)), own["train_s"], max(0.0, off_s))
