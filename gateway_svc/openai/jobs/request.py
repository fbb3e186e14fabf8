"""The request that creates a job, and the task file that it stands for."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, JsonValue

from common.spec import NAME_PATTERN
from common.spec.task import MetadataName, MetadataText
from gateway_svc.openai.errors import missing, unsupported, wrong_value
from gateway_svc.openai.jobs.hyperparams import HyperparametersIn
from gateway_svc.openai.parsing import Strict, Unset, WholeRequest, not_honoured
from gateway_svc.problems import FieldError, Problem

ENVIRONMENT = "env:"
"""Beginning of a `training_file` that names an environment."""
DEFAULT_NAME = "job"
Values = dict[str, JsonValue]


def _is_reinforcement(value: JsonValue) -> JsonValue:
    if isinstance(value, str) and value != "reinforcement":
        raise not_honoured(f"'{value[:40]}' is not supported; jobs are of the type 'reinforcement'")
    return value


def _is_absent(value: JsonValue) -> None:
    if value is not None:
        raise not_honoured("the environment grades; leave it out")


class _Reinforcement(Strict):
    grader: Annotated[None, BeforeValidator(_is_absent)] = None
    hyperparameters: HyperparametersIn = HyperparametersIn()


class _Method(Strict):
    type: Annotated[Literal["reinforcement"], BeforeValidator(_is_reinforcement)]
    reinforcement: _Reinforcement = _Reinforcement()
    supervised: Unset = None
    dpo: Unset = None


class JobRequest(WholeRequest):
    refused: ClassVar[Mapping[str, str]] = {
        "hyperparameters": "it is of supervised jobs; use method.reinforcement.hyperparameters",
        "validation_file": "files are not supported yet; set `marlaas.evaluation`, whose prompts the environment gives",
    }
    model: str = Field(min_length=1, max_length=200)
    """A pool, or a version of a task to start from."""
    training_file: str = Field(min_length=1, max_length=200)
    """`env:NAME`: an environment."""
    method: _Method | None = None
    suffix: str | None = Field(default=None, pattern=NAME_PATTERN)
    """The task's name."""
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    metadata: dict[MetadataName, MetadataText] = Field(default={}, max_length=16)
    integrations: Unset = None
    marlaas: dict[str, JsonValue] = {}
    """Any fields of a task file."""


@dataclass(frozen=True)
class Origin:
    """What a job starts from. `task` None: the base model."""

    pool: str
    task: str | None = None
    version: int | None = None


@dataclass(frozen=True)
class Given:
    """A field of a task file as OpenAI's request gives it. `param`: where."""

    path: str
    value: JsonValue
    param: str


def hyperparameters_of(request: JobRequest) -> HyperparametersIn:
    """Raises: Problem where the method is not said: OpenAI's default is another."""
    if request.method is None:
        raise missing("method", "it is required: {'type': 'reinforcement'}")
    return request.method.reinforcement.hyperparameters


def task_file(request: JobRequest, origin: Origin, scaled: Mapping[str, JsonValue]) -> Values:
    """The task file, without its tenant. `scaled`: values of fields that multipliers give.

    Raises: Problem for a field that is given twice and differs.
    """
    found: Values = {name: dict(value) if isinstance(value, dict) else value for name, value in request.marlaas.items()}
    for given in _given(request, origin, scaled):
        _put(found, given)
    found.setdefault("name", DEFAULT_NAME)
    if "steps" not in found:
        raise missing(
            "marlaas.steps", "an environment has no number of rows, from which epochs could be counted; say how many steps to take"
        )
    return found


def _given(request: JobRequest, origin: Origin, scaled: Mapping[str, JsonValue]) -> Iterator[Given]:
    yield Given("pool", origin.pool, "model")
    if origin.task is not None:
        yield Given("start.task", origin.task, "model")
        yield Given("start.version", origin.version, "model")
    yield Given("environment.name", _environment(request.training_file), "training_file")
    if request.suffix is not None:
        yield Given("name", request.suffix, "suffix")
    if request.seed is not None:
        yield Given("seed", request.seed, "seed")
    if request.metadata:
        yield Given("metadata", {**request.metadata}, "metadata")
    for path, name, value in hyperparameters_of(request).fields():
        yield Given(path, value, f"method.reinforcement.hyperparameters.{name}")
    for path, value in scaled.items():
        yield Given(path, value, f"method.reinforcement.hyperparameters.{SCALED_BY[path]}")


SCALED_BY = {"optimizer.learning_rate": "learning_rate_multiplier", "algorithm.group_size": "compute_multiplier"}
"""Field of a task file → hyperparameter that its default is multiplied by."""


def _environment(training_file: str) -> str:
    if not training_file.startswith(ENVIRONMENT):
        raise unsupported("training_file", "uploaded files are not supported yet; name an environment, as 'env:NAME'")
    return training_file.removeprefix(ENVIRONMENT)


def _put(found: Values, given: Given) -> None:
    """Raises: Problem where the task file has another value."""
    section, _, field = given.path.rpartition(".")
    table = found.setdefault(section, {}) if section else found
    if not isinstance(table, dict):
        raise wrong_value(f"marlaas.{section}", "it is a table")
    if field in table and table[field] != given.value:
        raise wrong_value(given.param, f"it says {given.value!r} and marlaas.{given.path} says {table[field]!r}; give one of them")
    table[field] = given.value


def named(problem: Problem, request: JobRequest, origin: Origin, scaled: Mapping[str, JsonValue]) -> Problem:
    """The problem of a rejected task file, with the places in OpenAI's request."""
    params = {given.path: given.param for given in _given(request, origin, scaled)}
    errors = [FieldError(params.get(one.field) or (f"marlaas.{one.field}" if one.field else ""), one.reason) for one in problem.errors]
    detail = "; ".join(f"{one.field}: {one.reason}" if one.field else one.reason for one in errors) or problem.detail
    return Problem(problem.status, problem.title, detail, problem.code, errors, problem.headers)
