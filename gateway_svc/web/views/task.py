"""Views of one task, and of several compared."""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from common.client_api.protocol import Verb
from common.client_api.training.progress import Failure
from common.messages import AliasOf, EvaluationOf, StepOf, TaskStatus, VersionOf, WhyAnswer
from common.task_states import ENDED
from gateway_svc.web.views.charts import Chart, Over, Paged, chart, series

CONTROLS: Mapping[Verb, str] = {
    "pause": "Groups in flight end; no new ones begin.",
    "resume": "New groups begin.",
    "cancel": "Work in flight is void, and the task cannot be resumed.",
}
"""Controls of a task that has not ended → their effect. The page and its forms know no others."""
WORKING = ("pace", "trainer", "capacity")
"""Causes of a wait in which the task waits only for its own work."""
MAX_RUNS = 8
MAX_POINTS = 300
"""Maximum rows of a chart; points of all runs share its x axis."""


@dataclass(frozen=True)
class TaskPage:
    status: TaskStatus
    why: WhyAnswer | None
    charts: Sequence[Chart]
    every: int
    """Sampling interval: the charts show one of every n steps."""
    over: Over
    versions: Paged[VersionOf]
    """Versions, latest first."""
    spec: Sequence[tuple[str, str]]
    """(path of a field, its value as in a task file)."""
    failures: Sequence[Failure]
    aliases: Sequence[AliasOf] = ()
    """Aliases that name a version of the task."""

    @property
    def has_ended(self) -> bool:
        return self.status.state in ENDED

    @property
    def works(self) -> bool:
        """Whether the task waits only for its own work, as a healthy task does most of the time."""
        return self.why is not None and self.why.cause in WORKING

    @property
    def controls(self) -> Sequence[Verb]:
        """Controls available now."""
        without = "pause" if self.status.state == "paused" else "resume"
        return () if self.has_ended else [verb for verb in CONTROLS if verb != without]


def flat(spec: Mapping[str, JsonValue], prefix: str = "") -> list[tuple[str, str]]:
    """Fields of a spec: (path, value as JSON). Options of an environment are one field."""
    found: list[tuple[str, str]] = []
    for name, value in spec.items():
        if isinstance(value, dict) and not prefix:
            found += flat(value, f"{name}.")
        else:
            found.append((f"{prefix}{name}", json.dumps(value, ensure_ascii=False)))
    return found


def places(steps: Sequence[StepOf], over: Over) -> list[float]:
    """Each step's position on the x axis."""
    if over == "step":
        return [float(step.version) for step in steps]
    if over == "time":
        begun_s = steps[0].times.first_admitted_s if steps else 0.0
        return [round(_ended_s(step) - begun_s, 3) for step in steps]
    sampled = itertools.accumulate(step.sampled_tokens for step in steps)
    return [
        float(total if step.total_sampled_tokens is None else step.total_sampled_tokens) for step, total in zip(steps, sampled, strict=True)
    ]


def task_charts(steps: Sequence[StepOf], evaluations: Sequence[EvaluationOf], over: Over) -> list[Chart]:
    """Charts over the trained steps; charts without data are left out."""
    trained = [step for step in steps if step.state == "trained"]
    xs = places(trained, over)

    def metric(name: str) -> list[tuple[float, float | None]]:
        return series(trained, xs, lambda step: step.metrics.get(name))

    at = {step.version: x for step, x in zip(trained, xs, strict=True)}
    found = [
        chart("Reward", "mean of a step", over, {"reward": series(trained, xs, lambda step: step.reward)}),
        chart("Evaluations", "mean reward, with its 95 % interval", over, evaluation_points(evaluations, at)),
        chart("KL", "nats", over, {"to the sampler": metric("kl_sampler"), "to the base model": metric("kl_base")}),
        chart("Entropy", "nats", over, {"entropy": metric("entropy")}),
        chart("Lengths", "sampled tokens", over, {"mean": metric("response_length"), "longest": metric("response_length_max")}),
        chart(
            "Staleness",
            "versions",
            over,
            {
                "mean": series(trained, xs, lambda step: step.staleness_mean),
                "highest": series(trained, xs, lambda step: float(step.staleness_max)),
            },
        ),
    ]
    return [one for one in found if one is not None]


def evaluation_points(evaluations: Sequence[EvaluationOf], places: Mapping[int, float]) -> dict[str, list[tuple[float, float | None]]]:
    """Three series per protocol: mean, lower and upper bound. Version 0 is at x = 0."""
    by_version = {0: 0.0, **places}
    found: dict[str, list[tuple[float, float | None]]] = {}
    for one in evaluations:
        if (x := by_version.get(one.version)) is None:
            continue
        low, high = interval(one)
        for name, value in ((one.protocol, reward(one)), (f"{one.protocol}, lower bound", low), (f"{one.protocol}, upper bound", high)):
            found.setdefault(name, []).append((x, value))
    return found


def reward(evaluation: EvaluationOf) -> float | None:
    return _number(evaluation.report.get("reward"))


def interval(evaluation: EvaluationOf) -> tuple[float | None, float | None]:
    match evaluation.report.get("interval"):
        case [low, high]:
            return _number(low), _number(high)
        case _:
            return None, None


def _number(value: JsonValue) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _ended_s(step: StepOf) -> float:
    return step.times.advanced_s or step.times.batched_s


@dataclass(frozen=True)
class Run:
    task: str
    spec: Mapping[str, JsonValue]
    steps: Sequence[StepOf]
    evaluations: Sequence[EvaluationOf]


@dataclass(frozen=True)
class Difference:
    path: str
    values: Sequence[str | None]
    """Value in each run, as JSON; None if its spec lacks the field."""


def differences(specs: Sequence[Mapping[str, JsonValue]]) -> list[Difference]:
    """Fields that differ between the specs."""
    fields = [dict(flat(spec)) for spec in specs]
    paths = dict.fromkeys(path for found in fields for path in found)
    rows = [Difference(path, [found.get(path) for found in fields]) for path in paths]
    return [row for row in rows if len(set(row.values)) > 1]


def compared(runs: Sequence[Run], over: Over) -> list[Chart]:
    """Charts with one series per run; charts without data are left out."""
    trained = {run.task: [step for step in run.steps if step.state == "trained"] for run in runs}
    xs = {task: places(steps, over) for task, steps in trained.items()}

    def of(value: Callable[[StepOf], float | None]) -> dict[str, list[tuple[float, float | None]]]:
        return {task: series(steps, xs[task], value) for task, steps in trained.items()}

    def metric(name: str) -> dict[str, list[tuple[float, float | None]]]:
        return of(lambda step: step.metrics.get(name))

    evaluated = {run.task: _evaluated(run, xs[run.task]) for run in runs}
    found = [
        chart("Reward", "mean of a step", over, of(lambda step: step.reward), most=MAX_POINTS),
        chart("Evaluation", "mean reward, first protocol", over, evaluated, most=MAX_POINTS),
        chart("KL to the sampler", "nats", over, metric("kl_sampler"), most=MAX_POINTS),
        chart("Entropy", "nats", over, metric("entropy"), most=MAX_POINTS),
        chart("Length", "sampled tokens, mean", over, metric("response_length"), most=MAX_POINTS),
        chart("Staleness", "versions, mean", over, of(lambda step: step.staleness_mean), most=MAX_POINTS),
    ]
    return [one for one in found if one is not None]


def _evaluated(run: Run, xs: Sequence[float]) -> list[tuple[float, float | None]]:
    """Evaluation rewards of the deciding protocol: the spec's first one, or the only one."""
    match run.spec.get("evaluation"):
        case {"protocol": [{"name": str(name)}, *_]}:
            first = name
        case _:
            first = run.evaluations[0].protocol if run.evaluations else ""
    trained = [step.version for step in run.steps if step.state == "trained"]
    at = {0: 0.0} | dict(zip(trained, xs, strict=True))
    return [(at[one.version], reward(one)) for one in run.evaluations if one.protocol == first and one.version in at]
