"""Stages of every step as a Gantt chart: one row per task, one colour per stage; and the number of steps in each stage over time."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.formats.step_times import MISSING, unpack_steps
from common.messages import TaskTimes

STAGES = ("sampling", "waiting for batch", "waiting for trainer", "training", "publishing")


@dataclass(frozen=True)
class TaskLine:
    task: str
    records: NDArray[np.void]
    """Step records as returned by `unpack_steps`."""
    spans: NDArray[np.float64]
    """Begin and end of each step's stages: Unix times, NaN for unfinished stages. Shape (steps, 5, 2)."""

    @property
    def steps(self) -> int:
        return len(self.records)

    @property
    def totals(self) -> list[float]:
        """Seconds spent in each stage, over the shown steps."""
        return [float(seconds) for seconds in np.nansum(self.spans[:, :, 1] - self.spans[:, :, 0], axis=0)]


@dataclass(frozen=True)
class Load:
    """Load of one stage over all shown tasks, from the first span to the last."""

    mean: float
    """Mean number of steps in the stage at a time."""
    highest: int
    busy: float
    """Fraction of the time with at least one step in the stage, from 0 to 1."""


def line_of(times: TaskTimes) -> TaskLine:
    """Stage spans of one task. The trainer's clock differs, so a stage may seem to end before it began: its length is then 0."""
    records = unpack_steps(times.steps)
    ends = np.where(records["ms"] == MISSING, np.nan, records["admitted_s"][:, None] + records["ms"] / 1000)
    begins = np.concatenate([records["admitted_s"][:, None], ends[:, :-1]], axis=1)
    known = ~np.isnan(begins) & ~np.isnan(ends)
    spans = np.stack([begins, np.fmax(begins, ends)], axis=2)
    return TaskLine(times.task, records, np.where(known[:, :, None], spans, np.nan))


def load_of(lines: Sequence[TaskLine]) -> list[Load]:
    """Load of each stage in STAGES. In a stage that waits, the load is the length of its queue."""
    spans = np.concatenate([line.spans for line in lines]) if lines else np.empty((0, len(STAGES), 2))
    if not len(spans):
        return [Load(0.0, 0, 0.0) for _ in STAGES]
    whole_s = float(np.nanmax(spans) - np.nanmin(spans))
    return [_load(spans[~np.isnan(spans[:, stage, 0]), stage], whole_s) for stage in range(len(STAGES))]


def _load(spans: NDArray[np.float64], whole_s: float) -> Load:
    lasting = spans[spans[:, 1] > spans[:, 0]]
    if not len(lasting) or whole_s <= 0:
        return Load(0.0, 0, 0.0)
    times = lasting.T.reshape(-1)
    changes = np.repeat([1, -1], len(lasting))
    order = np.lexsort((changes, times))  # at equal times, ends before begins
    count, gaps = np.cumsum(changes[order]), np.diff(times[order])
    return Load(float((lasting[:, 1] - lasting[:, 0]).sum()) / whole_s, int(count.max()), float(gaps[count[:-1] > 0].sum()) / whole_s)


def as_data(lines: Sequence[TaskLine], addresses: Mapping[str, str]) -> dict[str, object]:
    """Data for the script: arrays of numbers, and texts, which it never interprets as HTML. Times are seconds since the first span."""
    begun_s = min((float(line.records["admitted_s"].min()) for line in lines), default=0.0)
    return {
        "begun_s": begun_s,
        "stages": STAGES,
        "missing": MISSING,
        "tasks": [
            {
                "task": line.task,
                "address": addresses[line.task],
                "versions": _base64(line.records["version"], "<i4"),
                "begins": _base64(line.records["admitted_s"] - begun_s, "<f8"),
                "ms": _base64(line.records["ms"], "<i4"),
            }
            for line in lines
        ],
    }


def _base64(values: NDArray[np.generic], kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode()
