"""Stages of every step, for a Gantt chart: one row a task, one colour a stage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.messages import StepDurations, StepOf, StepTimes, TaskStatus

STAGES = ("sampling", "waiting for batch", "waiting for trainer", "training", "publishing")


@dataclass(frozen=True)
class Span:
    stage: int
    """Index in STAGES."""
    version: int
    begin_s: float
    """Unix time."""
    end_s: float


@dataclass(frozen=True)
class TaskLine:
    task: str
    name: str
    spans: Sequence[Span]
    totals: Sequence[float]
    """Seconds of each stage, over the steps that are shown."""
    steps: int


def spans_of(step: StepOf) -> list[Span]:
    """Stages that have ended. The trainer's clock is another one, so that a stage may end before it began: it has no length then."""
    times: StepTimes = step.times
    bounds = [
        (times.first_admitted_s, times.last_sampled_s),
        (times.last_sampled_s, times.batched_s),
        (times.batched_s, times.started_s),
        (times.started_s, times.trained_s),
        (times.trained_s, times.advanced_s),
    ]
    return [
        Span(stage, step.version, begin, max(begin, end))
        for stage, (begin, end) in enumerate(bounds)
        if begin is not None and end is not None
    ]


def line_of(status: TaskStatus, steps: Sequence[StepOf]) -> TaskLine:
    seconds = [_seconds(step.durations) for step in steps]
    totals = [sum(of_step[stage] for of_step in seconds) for stage in range(len(STAGES))]
    return TaskLine(status.task, status.name, [span for step in steps for span in spans_of(step)], totals, len(steps))


def as_data(lines: Sequence[TaskLine], addresses: Mapping[str, str]) -> dict[str, object]:
    """What the script draws: numbers, and texts that it only ever writes as text. Times are seconds since the first span."""
    begun_s = min((span.begin_s for line in lines for span in line.spans), default=0.0)
    return {
        "begun_s": begun_s,
        "stages": STAGES,
        "tasks": [
            {
                "task": line.task,
                "address": addresses[line.task],
                "spans": [
                    [span.stage, span.version, round(span.begin_s - begun_s, 3), round(span.end_s - begun_s, 3)] for span in line.spans
                ],
            }
            for line in lines
        ],
    }


def _seconds(durations: StepDurations) -> tuple[float, ...]:
    return (
        durations.sampling_s,
        durations.wait_for_batch_s,
        durations.wait_for_trainer_s or 0.0,
        durations.training_s or 0.0,
        durations.publishing_s or 0.0,
    )
