"""Several runs side by side."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from common.messages import EvaluationOf, StepOf
from gateway_svc.web.views.charts import Chart, Over, chart, series
from gateway_svc.web.views.task import flat, places, reward

MAX_RUNS = 8
MAX_POINTS = 300
"""Rows of a chart: points of all runs share its axis."""


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
    """Of each run, as JSON; None where its spec has no such field."""


def differences(specs: Sequence[Mapping[str, JsonValue]]) -> list[Difference]:
    """Fields that are not the same in all specs."""
    fields = [dict(flat(spec)) for spec in specs]
    paths = dict.fromkeys(path for found in fields for path in found)
    rows = [Difference(path, [found.get(path) for found in fields]) for path in paths]
    return [row for row in rows if len(set(row.values)) > 1]


def compared(runs: Sequence[Run], over: Over) -> list[Chart]:
    """Charts with one series a run, those with data."""
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
    """Of the protocol that decides: the first one of the spec, or the only one."""
    match run.spec.get("evaluation"):
        case {"protocol": [{"name": str(name)}, *_]}:
            first = name
        case _:
            first = run.evaluations[0].protocol if run.evaluations else ""
    trained = [step.version for step in run.steps if step.state == "trained"]
    at = {0: 0.0} | dict(zip(trained, xs, strict=True))
    return [(at[one.version], reward(one)) for one in run.evaluations if one.protocol == first and one.version in at]
