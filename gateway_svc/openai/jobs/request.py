"""The request that creates a job, and its conversion to a task file. docs/openai.md has the table of hyperparameters."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, Field, JsonValue

from common.graders import WrongGrader, read_grader
from common.messages import FILE_FAMILY, FILE_ID_PATTERN
from common.spec import NAME_PATTERN
from common.spec.task import MetadataName, MetadataText
from gateway_svc.openai.errors import missing, unsupported, wrong_value
from gateway_svc.openai.parsing import Strict, Unset, WholeRequest, not_honoured
from gateway_svc.problems import FieldError, Problem

Auto = Literal["auto"]
Multiplier = Annotated[float, Field(gt=0, le=1000)] | Auto
Positive = Annotated[int, Field(ge=1)] | Auto
FIELDS = {"batch_size": "algorithm.groups_per_step", "eval_interval": "evaluation.every", "eval_samples": "evaluation.prompts"}
"""Hyperparameter → field of a task file."""
ENVIRONMENT = "env:"
"""Prefix of a `training_file` that names an environment."""
DEFAULT_NAME = "job"
MAX_HELD_OUT = 64
"""Maximum held-out rows of an evaluation if the job does not set a number."""
SCALED_BY = {"optimizer.learning_rate": "learning_rate_multiplier", "algorithm.group_size": "compute_multiplier", "steps": "n_epochs"}
"""Field of a task file → hyperparameter that determines it."""


def _is_default(value: JsonValue) -> JsonValue:
    if value not in (None, "default"):
        raise not_honoured("models have no such setting; marlaas.sampling.template sets what a chat template reads")
    return value


class HyperparametersIn(Strict):
    """Hyperparameters; `auto` means the pool's default."""

    batch_size: Positive = "auto"
    """algorithm.groups_per_step"""
    eval_interval: Positive = "auto"
    """evaluation.every"""
    eval_samples: Positive = "auto"
    """evaluation.prompts"""
    learning_rate_multiplier: Multiplier = "auto"
    """Factor on the default of optimizer.learning_rate."""
    compute_multiplier: Multiplier = "auto"
    """Factor on the default of algorithm.group_size; the product is rounded."""
    n_epochs: Positive = "auto"
    """Passes over the file; steps = epochs × rows / groups per step, rounded up. Default 1 for a file without `marlaas.steps`."""
    reasoning_effort: Annotated[Literal["default"] | None, BeforeValidator(_is_default)] = None

    def fields(self) -> Iterator[tuple[str, str, int]]:
        """Yield (field of a task file, hyperparameter, value)."""
        for name, path in FIELDS.items():
            value: int | Auto = getattr(self, name)
            if value != "auto":
                yield path, name, value

    @property
    def needs_defaults(self) -> bool:
        return self.learning_rate_multiplier != "auto" or self.compute_multiplier != "auto"

    def steps_for(self, rows: int, defaults: Mapping[str, JsonValue]) -> int:
        """Number of steps for `n_epochs` passes over `rows` rows. `defaults`: a task file with all values."""
        groups = _number(defaults, "algorithm", "groups_per_step")
        return math.ceil(rows * (1 if self.n_epochs == "auto" else self.n_epochs) / groups)

    def scaled(self, defaults: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Field of a task file → its default times the multiplier. `defaults`: a task file with all values.

        Raises: Problem if a group would have fewer than two attempts.
        """
        found: dict[str, JsonValue] = {}
        if self.learning_rate_multiplier != "auto":
            found["optimizer.learning_rate"] = _number(defaults, "optimizer", "learning_rate") * self.learning_rate_multiplier
        if self.compute_multiplier != "auto":
            size = round(_number(defaults, "algorithm", "group_size") * self.compute_multiplier)
            if size < 1:
                raise wrong_value("method.reinforcement.hyperparameters.compute_multiplier", "a group would have no attempts")
            found["algorithm.group_size"] = size
        return found


def _number(values: Mapping[str, JsonValue], section: str, field: str) -> float:
    table = values.get(section)
    value = table.get(field) if isinstance(table, dict) else None
    assert isinstance(value, int | float), f"a completed task has {section}.{field}"
    return value


Values = dict[str, JsonValue]


def _is_reinforcement(value: JsonValue) -> JsonValue:
    if isinstance(value, str) and value != "reinforcement":
        raise not_honoured(f"'{value[:40]}' is not supported; jobs are of the type 'reinforcement'")
    return value


class _Reinforcement(Strict):
    grader: dict[str, JsonValue] | None = None
    """Grader of the file's rows."""
    hyperparameters: HyperparametersIn = HyperparametersIn()


class _Method(Strict):
    type: Annotated[Literal["reinforcement"], BeforeValidator(_is_reinforcement)]
    reinforcement: _Reinforcement = _Reinforcement()
    supervised: Unset = None
    dpo: Unset = None


class JobRequest(WholeRequest):
    refused: ClassVar[Mapping[str, str]] = {
        "hyperparameters": "it is of supervised jobs; use method.reinforcement.hyperparameters",
    }
    model: str = Field(min_length=1, max_length=200)
    """A pool, or the version of a task to start from."""
    training_file: str = Field(min_length=1, max_length=200)
    """An uploaded file, or `env:NAME` for an environment."""
    validation_file: str | None = Field(default=None, min_length=1, max_length=200)
    """An uploaded file with held-out rows for evaluation."""
    method: _Method | None = None
    suffix: str | None = Field(default=None, pattern=NAME_PATTERN)
    """The task's name."""
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    metadata: dict[MetadataName, MetadataText] = Field(default={}, max_length=16)
    integrations: Unset = None
    marlaas: dict[str, JsonValue] = {}
    """Any other fields of a task file."""


@dataclass(frozen=True)
class Origin:
    """Start of a job's training. `task` None: the base model."""

    pool: str
    task: str | None = None
    version: int | None = None


@dataclass(frozen=True)
class Rows:
    """Numbers of rows of the files that a job names; None for a file that it does not name."""

    training: int | None = None
    validation: int | None = None


NO_ROWS = Rows()


@dataclass(frozen=True)
class GivenField:
    """A task file's field set through OpenAI's request. `param`: the field of the request."""

    path: str
    value: JsonValue
    param: str


def hyperparameters_of(request: JobRequest) -> HyperparametersIn:
    """Hyperparameters of a request. Raises: Problem if the method is missing, as OpenAI's default is not supported."""
    if request.method is None:
        raise missing("method", "it is required: {'type': 'reinforcement'}")
    return request.method.reinforcement.hyperparameters


def task_file(request: JobRequest, origin: Origin, scaled: Mapping[str, JsonValue], rows: Rows = NO_ROWS) -> Values:
    """Build the task file, without its tenant. `scaled`: field values derived from multipliers or epochs.

    Raises: Problem for a field that is set twice with different values.
    """
    found: Values = {name: dict(value) if isinstance(value, dict) else value for name, value in request.marlaas.items()}
    for given in _given(request, origin, scaled):
        _put(found, given)
    found.setdefault("name", DEFAULT_NAME)
    if rows.validation is not None:
        _evaluate(found, rows.validation)
    if "steps" not in found:
        raise missing(
            "marlaas.steps", "an environment has no number of rows, from which epochs could be counted; say how many steps to take"
        )
    return found


def _given(request: JobRequest, origin: Origin, scaled: Mapping[str, JsonValue]) -> Iterator[GivenField]:
    yield GivenField("pool", origin.pool, "model")
    if origin.task is not None:
        yield GivenField("start.task", origin.task, "model")
        yield GivenField("start.version", origin.version, "model")
    yield GivenField("environment.name", _environment(request), "training_file")
    if request.method is not None and (grader := request.method.reinforcement.grader) is not None:
        yield GivenField("environment.options.grader", grader, "method.reinforcement.grader")
    if request.validation_file is not None:
        yield GivenField("evaluation.options.file", request.validation_file, "validation_file")
    if request.suffix is not None:
        yield GivenField("name", request.suffix, "suffix")
    if request.seed is not None:
        yield GivenField("seed", request.seed, "seed")
    if request.metadata:
        yield GivenField("metadata", {**request.metadata}, "metadata")
    for path, name, value in hyperparameters_of(request).fields():
        yield GivenField(path, value, f"method.reinforcement.hyperparameters.{name}")
    for path, value in scaled.items():
        yield GivenField(path, value, f"method.reinforcement.hyperparameters.{SCALED_BY[path]}")


def is_file_id(name: str) -> bool:
    return re.fullmatch(FILE_ID_PATTERN, name) is not None


def check_files(request: JobRequest) -> None:
    """Raises: Problem if files, environment and grader contradict each other."""
    grader = None if request.method is None else request.method.reinforcement.grader
    if is_file_id(request.training_file):
        if grader is not None:
            check_grader(grader, "method.reinforcement.grader")
        elif "grader" not in _options(request):
            raise missing("method.reinforcement.grader", "the rows of a file need a grader")
        if request.validation_file is not None and not is_file_id(request.validation_file):
            raise wrong_value("validation_file", "there is no such file")
    elif not request.training_file.startswith(ENVIRONMENT):
        raise wrong_value("training_file", "there is no such file; name an uploaded one, or an environment as 'env:NAME'")
    elif grader is not None:
        raise unsupported("method.reinforcement.grader", "the environment grades; leave it out")
    elif request.validation_file is not None:
        raise unsupported("validation_file", "an environment gives its own held-out prompts; set `marlaas.evaluation`")
    elif hyperparameters_of(request).n_epochs != "auto":
        raise unsupported("method.reinforcement.hyperparameters.n_epochs", "an environment has no number of rows; set marlaas.steps")


def _options(request: JobRequest) -> Mapping[str, JsonValue]:
    environment = request.marlaas.get("environment")
    options = environment.get("options") if isinstance(environment, dict) else None
    return options if isinstance(options, dict) else {}


def _environment(request: JobRequest) -> str:
    if is_file_id(request.training_file):
        return f"{FILE_FAMILY}:{request.training_file}"
    return request.training_file.removeprefix(ENVIRONMENT)


def _evaluate(found: Values, rows: int) -> None:
    """Add defaults for evaluating on the held-out rows: ten evaluations during the job, each with all rows, at most MAX_HELD_OUT."""
    evaluation, steps = found.get("evaluation"), found.get("steps")
    if isinstance(evaluation, dict):
        evaluation.setdefault("prompts", min(rows, MAX_HELD_OUT))
        evaluation.setdefault("every", max(1, steps // 10) if isinstance(steps, int) else 1)


def _put(found: Values, given: GivenField) -> None:
    """Set a field of the task file. Raises: Problem if the file has another value."""
    *sections, field = given.path.split(".")
    table: JsonValue = found
    for section in sections:
        assert isinstance(table, dict)
        table[section] = dict(inner) if isinstance(inner := table.get(section, {}), dict) else inner
        table = table[section]
        if not isinstance(table, dict):
            raise wrong_value(f"marlaas.{given.path.rpartition('.')[0]}", "it is a table")
    if field in table and table[field] != given.value:
        raise wrong_value(
            given.param, f"it says {given.value!r:.200} and marlaas.{given.path} says {table[field]!r:.200}; give one of them"
        )
    table[field] = given.value


def named(problem: Problem, request: JobRequest, origin: Origin, scaled: Mapping[str, JsonValue]) -> Problem:
    """The problem of a rejected task file, with field names of OpenAI's request."""
    params = {given.path: given.param for given in _given(request, origin, scaled)}
    errors = [FieldError(params.get(one.field) or (f"marlaas.{one.field}" if one.field else ""), one.reason) for one in problem.errors]
    detail = "; ".join(f"{one.field}: {one.reason}" if one.field else one.reason for one in errors) or problem.detail
    return Problem(problem.status, problem.title, detail, problem.code, errors, problem.headers)


class GraderRequest(WholeRequest):
    grader: dict[str, JsonValue]


class GraderAnswer(BaseModel):
    grader: dict[str, JsonValue]


def check_grader(grader: JsonValue, param: str) -> None:
    """Raises: Problem for an invalid or unsupported grader. `param`: the grader's field in the request."""
    try:
        read_grader(grader)
    except WrongGrader as error:
        place = f"{param}.{error.field}" if error.field else param
        raise (unsupported if "not supported" in error.reason else wrong_value)(place, error.reason) from None
