"""State, events and checkpoints of a task in the shapes of a job, and pages of them."""

import math
from collections.abc import Mapping
from typing import Generic, Literal, TypeVar

from pydantic import BaseModel, JsonValue

from common.messages import FILE_FAMILY, Event, StepOf, TaskStatus, VersionOf, is_file
from gateway_svc.openai.jobs.request import ENVIRONMENT
from gateway_svc.openai.models import name_of

Status = Literal["validating_files", "queued", "running", "paused", "succeeded", "failed", "cancelled"]
STATUSES: Mapping[str, Status] = {
    "submitted": "validating_files",
    "paused": "paused",
    "finished": "succeeded",
    "failed": "failed",
    "rejected": "failed",
    "cancelled": "cancelled",
}
ENDED = ("succeeded", "failed", "cancelled")
LEVELS: Mapping[str, Literal["info", "warn", "error"]] = {
    "failed": "error", "rejected": "error", "warning": "warn", "storage": "warn", "expiring": "warn",
}  # fmt: skip
"""Event → level; other events are `info`."""
METRICS = ("step", "evaluation")
T = TypeVar("T", bound=BaseModel)
PREFIX = "steps-"


class JobError(BaseModel):
    code: str
    message: str
    param: str | None


class Hyperparameters(BaseModel):
    """Effective values of a task file under OpenAI's names; the multiplier is always `auto`."""

    batch_size: int | Literal["auto"]
    eval_interval: int | Literal["auto"]
    eval_samples: int | Literal["auto"]
    learning_rate_multiplier: Literal["auto"] = "auto"
    n_epochs: int | Literal["auto"] = "auto"
    """Minimum number of epochs that gives this number of steps; `auto` if the file no longer exists."""


class Reinforcement(BaseModel):
    grader: JsonValue
    hyperparameters: Hyperparameters
    """Hyperparameters of the job."""


class Method(BaseModel):
    type: Literal["reinforcement"] = "reinforcement"
    reinforcement: Reinforcement | None = None
    """Grader and hyperparameters of a job on a file; None for a job on an environment."""


class TaskOfJob(BaseModel):
    """Fields of the task that OpenAI's job lacks."""

    name: str
    pool: str
    state: str
    reason: str
    version: int
    steps: int
    reward: float | None
    sampled_tokens: int
    spec: dict[str, JsonValue]
    """The task file, completed by defaults."""


class Job(BaseModel):
    id: str
    object: Literal["fine_tuning.job"] = "fine_tuning.job"
    created_at: int
    error: JobError | None
    estimated_finish: int | None
    fine_tuned_model: str | None
    finished_at: int | None
    hyperparameters: Hyperparameters
    integrations: list[JsonValue] = []
    metadata: dict[str, str]
    method: Method = Method()
    model: str
    organization_id: str
    """Name of the tenant."""
    result_files: list[str] = []
    seed: int
    status: Status
    trained_tokens: int | None
    training_file: str
    validation_file: str | None
    marlaas: TaskOfJob


def job_of(
    status: TaskStatus,
    spec: Mapping[str, JsonValue],
    *,
    trained_tokens: int | None = None,
    rows: Mapping[str, int] = {},  # never changed
) -> Job:
    """Build a job.

    `spec`: the task file as stored by the scheduler. `trained_tokens`: for ended tasks. `rows`: number of rows by file id.
    """
    state, hyperparameters = status_of(status), _hyperparameters(spec, rows.get(training_file_of(spec)))
    has_ended, grader = state in ENDED, _table(_table(spec, "environment"), "options").get("grader")
    return Job(
        id=status.task,
        created_at=int(status.submitted_s),
        error=_error(status) if state == "failed" else None,
        estimated_finish=None if status.expected_end_s is None else int(status.expected_end_s),
        fine_tuned_model=name_of(status.task, status.adapter.version) if state == "succeeded" and status.adapter else None,
        finished_at=int(status.updated_s) if has_ended else None,
        hyperparameters=hyperparameters,
        metadata=metadata_of(spec),
        method=Method(reinforcement=None if grader is None else Reinforcement(grader=grader, hyperparameters=hyperparameters)),
        model=_model(status, _table(spec, "start")),
        organization_id=status.tenant,
        result_files=[result_id(status.task)] if has_ended and status.version else [],
        seed=seed if isinstance(seed := spec.get("seed"), int) else 0,
        status=state,
        trained_tokens=trained_tokens if has_ended else None,
        training_file=training_file_of(spec),
        validation_file=held_out if isinstance(held_out := _table(_table(spec, "evaluation"), "options").get("file"), str) else None,
        marlaas=TaskOfJob(spec=dict(spec), **status.model_dump(include=set(TaskOfJob.model_fields) - {"spec"})),
    )


def training_file_of(spec: Mapping[str, JsonValue]) -> str:
    name = str(_table(spec, "environment").get("name", ""))
    return name.removeprefix(f"{FILE_FAMILY}:") if is_file(name) else f"{ENVIRONMENT}{name}"


def status_of(status: TaskStatus) -> Status:
    """Job status; a task is `queued` until its first token is sampled."""
    has_begun = status.version > 0 or status.sampled_tokens > 0
    return STATUSES.get(status.state, "running" if has_begun else "queued")


def metadata_of(spec: Mapping[str, JsonValue]) -> dict[str, str]:
    return {name: str(text) for name, text in _table(spec, "metadata").items()}


def _error(status: TaskStatus) -> JobError:
    code = "task_rejected" if status.state == "rejected" else "task_failed"
    return JobError(code=code, message=status.reason or f"the task was {status.state}", param=None)


def _hyperparameters(spec: Mapping[str, JsonValue], rows: int | None) -> Hyperparameters:
    evaluation, groups = _table(spec, "evaluation"), _table(spec, "algorithm").get("groups_per_step")
    every = evaluation.get("every")
    prompts = evaluation.get("prompts") if every else None
    return Hyperparameters(
        batch_size=groups if isinstance(groups, int) else "auto",
        eval_interval=every if isinstance(every, int) and every else "auto",
        eval_samples=prompts if isinstance(prompts, int) else "auto",
        n_epochs=_epochs(spec.get("steps"), groups, rows) or "auto",
    )


def _epochs(steps: JsonValue, groups: JsonValue, rows: int | None) -> int | None:
    """Minimum number of epochs that gives exactly `steps` steps; None if there is none."""
    if not (rows and isinstance(steps, int) and isinstance(groups, int)):
        return None
    fewest = (steps - 1) * groups // rows + 1
    return fewest if math.ceil(fewest * rows / groups) == steps else None


def _model(status: TaskStatus, start: Mapping[str, JsonValue]) -> str:
    task, version = start.get("task"), start.get("version")
    return name_of(task, version) if isinstance(task, str) and isinstance(version, int) else status.pool


def _table(spec: Mapping[str, JsonValue], name: str) -> Mapping[str, JsonValue]:
    found = spec.get(name)
    return found if isinstance(found, dict) else {}


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
    """Metrics of the step that created a version: its reward, and the trainer's metrics by name."""

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
    """Number of the task's event with this id; None if the id is not of this task."""
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
    """Checkpoint for a stored version. `step`: the step that created it, if known."""
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


class Page(BaseModel, Generic[T]):
    object: Literal["list"] = "list"
    data: list[T]
    has_more: bool
    first_id: str | None = None
    last_id: str | None = None


def page_of(found: list[T], limit: int) -> Page[T]:
    """Page of `found`, which has one element more than `limit` if there are further pages."""
    kept = found[:limit]
    ids = [str(getattr(one, "id", "")) for one in kept]
    return Page(data=kept, has_more=len(found) > limit, first_id=ids[0] if ids else None, last_id=ids[-1] if ids else None)


def result_id(task: str) -> str:
    return f"{PREFIX}{task}"


def task_of_result(file: str) -> str | None:
    """The task of a result file's id; None for other ids."""
    return file.removeprefix(PREFIX) if file.startswith(PREFIX) else None
