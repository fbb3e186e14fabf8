"""A step's time in sampler, environment and trainer, and the maximum gain that it allows. Pure."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

from bench.harness.load.standins import SampledSpan, Trace, TrainedSpan
from bench.harness.services import BenchError
from marlaas.reporting.progress import TrainedStep

BEFORE = ("read_s", "restore_s", "wait_s")
"""Stages of a step in the trainer before it is computed: reading, restoring, queueing."""


def trained_span(task: str, step: TrainedStep) -> TrainedSpan:
    """The step's computation, from its turn until it is stored. Raises: BenchError when its event lacks the times."""
    if step.batched_s is None or step.started_s is None or step.trained_s is None:
        raise BenchError(f"task {task}: the event of version {step.version} does not say when it was trained")
    begins_s = step.started_s + sum(step.metrics[phase] for phase in BEFORE)
    return TrainedSpan(task, step.version - 1, step.batched_s, begins_s, max(begins_s, step.trained_s - step.metrics["publish_s"]))


def stage_times(trace: Trace, groups_per_step: int) -> dict[str, float]:
    """Medians over steps, in seconds: R and E of its slowest attempt, T in the trainer.

    Groups are numbered from 0 and none is void, so numbers identify a step's groups.
    """
    attempts: defaultdict[tuple[str, int, int], list[SampledSpan]] = defaultdict(list)
    for span in trace.sampled:
        attempts[span.task, span.group, span.member].append(span)
    by_step: defaultdict[tuple[str, int], list[list[SampledSpan]]] = defaultdict(list)
    for (task, group, _), spans in attempts.items():
        by_step[task, group // groups_per_step].append(spans)
    slowest = [max(spans, key=lambda one: max(span.ended_at + span.environment_s for span in one)) for spans in by_step.values()]
    return {
        "sampling": round(median([sum(span.ended_at - span.asked_at for span in spans) for spans in slowest]), 3),
        "environment": round(median([sum(span.environment_s for span in spans) for spans in slowest]), 3),
        "training": round(median([span.ended_at - span.started_at for span in trace.trained]), 3),
    }


def to_gain(runs: Sequence[dict[str, Any]]) -> dict[str, float] | None:
    """Stage times in the runs with one task, and (R + E + T) / T (arXiv 2605.08527). None without such runs."""
    alone = [run for run in runs if run["tasks"] == 1]
    if not alone:
        return None
    found = {stage: median([run["stages_s"][stage] for run in alone]) for stage in ("sampling", "environment", "training")}
    step_s = median([run["step_s"]["p50"] for run in alone])
    between_s, closed_form = max(0.0, step_s - sum(found.values())), sum(found.values()) / found["training"]
    found |= {"between": between_s, "step": step_s, "closed_form": closed_form}
    return {name: round(value, 3) for name, value in found.items()}
