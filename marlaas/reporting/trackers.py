"""Experiment trackers for the events of tasks: `marlaas watch --log-to tensorboard:runs`.

Each tracker is an extra: `pip install marlaas[tensorboard]`, `[wandb]` or `[trackio]`. A task is a run under its id, a
version is a step. Following a task twice from the start logs the same points twice.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from pydantic import JsonValue

from common.errors import MarlaasError
from common.evaluation import EvaluationReport
from common.messages import Event
from common.spec import MAIN_PROTOCOL

PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb", "trackio": "trackio"}
PHASES = (
    ("sampling_s", "first_admitted_s", "last_sampled_s"),
    ("wait_for_batch_s", "last_sampled_s", "batched_s"),
    ("wait_for_trainer_s", "batched_s", "started_s"),
    ("training_s", "started_s", "trained_s"),
)
"""(name, start, end): phases of a step, from the `times` of its event."""


class TrackerError(MarlaasError):
    """Points cannot be logged; the text says what to do."""


@dataclass(frozen=True)
class Point:
    """Metrics of one version, from one event."""

    task: str
    tenant: str
    version: int
    at_s: float
    values: Mapping[str, float]


class Tracker(Protocol):
    """A destination of points."""

    def log(self, point: Point) -> None: ...

    def close(self) -> None:
        """Write all points that were logged."""
        ...


def point_of(event: Event) -> Point | None:
    """The numbers of a step or an evaluation; None for events without any."""
    data, version = event.data, event.data.get("version")
    if event.event not in ("step", "evaluation") or not isinstance(version, int):
        return None
    values = dict(_numbers(data.items()))
    values.pop("version")
    for section, prefix in (("metrics", ""), ("pass_at", "pass_at.")):
        found = data.get(section)
        values |= dict(_numbers((f"{prefix}{name}", value) for name, value in found.items())) if isinstance(found, dict) else {}
    times = dict(_numbers(found.items())) if isinstance(found := data.get("times"), dict) else {}
    values |= {name: times[end] - times[start] for name, start, end in PHASES if start in times and end in times}
    place = event.event
    if (report := EvaluationReport.in_event(event)) is not None:
        place += "" if report.protocol == MAIN_PROTOCOL else f".{report.protocol}"
        values |= dict(_bounds("", report.interval))
        if report.gain:
            values |= {"gain": report.gain.reward, **dict(_bounds("gain_", report.gain.interval))}
    return Point(event.task, event.tenant, version, event.at_s, {f"{place}/{name}": value for name, value in values.items()})


def open_tracker(address: str) -> Tracker:
    """The tracker at `tensorboard:<folder>`, `wandb:<project>` or `trackio:<project>`.

    Raises: TrackerError if there is no such kind, or its package is not installed.
    """
    kind, _, place = address.partition(":")
    if kind not in PACKAGES or not place:
        raise TrackerError(f"no tracker '{address}'; there are tensorboard:<folder>, wandb:<project> and trackio:<project>")
    try:
        package = import_module(PACKAGES[kind])
    except ImportError:
        raise TrackerError(f"{kind} needs a package that is not installed: pip install 'marlaas[{kind}]'") from None
    if kind == "tensorboard":
        return TensorBoard(package, Path(place))
    return WeightsAndBiases(package, place) if kind == "wandb" else Trackio(package, place)


class TensorBoard:
    """Writes one folder of event files below `folder` per task. `Any`: the package has no types."""

    def __init__(self, package: Any, folder: Path) -> None:
        self._package = package
        self._folder = folder
        self._writers: dict[str, Any] = {}

    def log(self, point: Point) -> None:
        if point.task not in self._writers:
            self._writers[point.task] = self._package.SummaryWriter(logdir=str(self._folder / point.task))
        for name, value in point.values.items():
            self._writers[point.task].add_scalar(name, value, point.version, walltime=point.at_s)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


class _Runs:
    """Runs of a package with wandb's interface, one for each task."""

    def __init__(self, package: Any, project: str) -> None:
        self._package = package
        self._project = project
        self._runs: dict[str, Any] = {}

    def close(self) -> None:
        for run in self._runs.values():
            run.finish()


class WeightsAndBiases(_Runs):
    """Runs of Weights & Biases, grouped by tenant. WANDB_MODE=offline writes to ./wandb without a server."""

    def log(self, point: Point) -> None:
        run = self._runs.get(point.task)
        if run is None:
            run = self._package.init(project=self._project, id=point.task, name=point.task, group=point.tenant, reinit="create_new")
            run.define_metric("version")
            run.define_metric("*", step_metric="version")  # an evaluation arrives after later steps
            self._runs[point.task] = run
        run.log({**point.values, "version": point.version})


class Trackio(_Runs):
    """Runs of Trackio, stored on this machine."""

    def log(self, point: Point) -> None:
        if point.task not in self._runs:
            self._runs[point.task] = self._package.init(project=self._project, name=point.task, group=point.tenant, embed=False)
        self._runs[point.task].log(dict(point.values), step=point.version)


def _bounds(prefix: str, interval: tuple[float, float] | None) -> Iterable[tuple[str, float]]:
    return zip((f"{prefix}lower_bound", f"{prefix}upper_bound"), interval or (), strict=False)


def _numbers(pairs: Iterable[tuple[str, JsonValue]]) -> Iterable[tuple[str, float]]:
    return ((name, float(value)) for name, value in pairs if isinstance(value, int | float) and not isinstance(value, bool))
