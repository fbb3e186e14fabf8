"""A task's state as a job."""

import math
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, JsonValue

from common.messages import FILE_FAMILY, TaskStatus, is_file
from gateway_svc.openai.jobs.request import ENVIRONMENT
from gateway_svc.openai.model_names import name_of
from gateway_svc.openai.result_ids import result_id

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


class JobError(BaseModel):
    code: str
    message: str
    param: str | None


class Hyperparameters(BaseModel):
    """Effective values of a task file, under OpenAI's names; the multiplier is always `auto`."""

    batch_size: int | Literal["auto"]
    eval_interval: int | Literal["auto"]
    eval_samples: int | Literal["auto"]
    learning_rate_multiplier: Literal["auto"] = "auto"
    n_epochs: int | Literal["auto"] = "auto"
    """Of a file that is there: the fewest that make as many steps."""


class Reinforcement(BaseModel):
    grader: JsonValue
    hyperparameters: Hyperparameters
    """The job's."""


class Method(BaseModel):
    type: Literal["reinforcement"] = "reinforcement"
    reinforcement: Reinforcement | None = None
    """Of a job on a file."""


class TaskOfJob(BaseModel):
    """What the task has and OpenAI's job has not."""

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
    """The tenant."""
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
    """`spec`: the task file as the scheduler has it. `trained_tokens`: of a task that has ended. `rows`: of files, by id."""
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
    """A task is queued until the first token is sampled."""
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
    """None where no number of epochs makes so many steps."""
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
