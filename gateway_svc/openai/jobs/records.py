"""Events and checkpoints of a job."""

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, JsonValue

from common.messages import Event, StepOf, VersionOf
from gateway_svc.openai.model_names import name_of

LEVELS: Mapping[str, Literal["info", "warn", "error"]] = {
    "failed": "error", "rejected": "error", "warning": "warn", "storage": "warn", "expiring": "warn",
}  # fmt: skip
"""Event → level; others are `info`."""
METRICS = ("step", "evaluation")


class JobEvent(BaseModel):
    id: str
    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"
    created_at: int
    level: Literal["info", "warn", "error"]
    message: str
    type: Literal["message", "metrics"]
    data: dict[str, JsonValue]
    """`event`: its name in docs/events.md; the rest is its data."""


class CheckpointMetrics(BaseModel):
    """Metrics of the step that made a version: its reward, and the trainer's by name."""

    model_config = {"extra": "allow"}
    step: float
    reward: float


class Checkpoint(BaseModel):
    id: str
    object: Literal["fine_tuning.job.checkpoint"] = "fine_tuning.job.checkpoint"
    created_at: int
    fine_tuned_model_checkpoint: str
    fine_tuning_job_id: str
    metrics: CheckpointMetrics
    step_number: int


def event_of(event: Event) -> JobEvent:
    return JobEvent(
        id=f"{event.task}.{event.number}",
        created_at=int(event.at_s),
        level=LEVELS.get(event.event, "info"),
        message=_message(event),
        type="metrics" if event.event in METRICS else "message",
        data={**event.data, "event": event.event},
    )


def number_of_event(event_id: str, task: str) -> int | None:
    """Number of the task's event with this id; None where it is none of its."""
    of, _, number = event_id.rpartition(".")
    return int(number) if of == task and number.isascii() and number.isdigit() and len(number) < 19 else None


def _message(event: Event) -> str:
    data = event.data
    match event.event:
        case "step":
            return f"Step {data.get('version')} is trained: reward {_shown(data.get('reward'))}"
        case "evaluation":
            return f"Version {data.get('version')} is evaluated by '{data.get('protocol')}': reward {_shown(data.get('reward'))}"
        case "rejected":
            reasons = data.get("reasons")
            return f"The job is rejected: {'; '.join(map(str, reasons)) if isinstance(reasons, list) else data.get('reason', '')}"
        case _:
            reason = data.get("reason")
            return f"The job: {event.event}" + (f": {reason}" if reason else "")


def _shown(reward: JsonValue) -> str:
    return f"{reward:.4f}" if isinstance(reward, int | float) else "none"


def checkpoint_of(task: str, version: VersionOf, step: StepOf | None) -> Checkpoint:
    """`step`: the one that made it, where it is known."""
    metrics = {**(step.metrics if step is not None else {}), "step": float(version.version), "reward": version.reward}
    name = name_of(task, version.version)
    return Checkpoint(
        id=name,
        created_at=int(version.advanced_s),
        fine_tuned_model_checkpoint=name,
        fine_tuning_job_id=task,
        metrics=CheckpointMetrics.model_validate(metrics),
        step_number=version.version,
    )
