"""OpenAI's hyperparameters of reinforcement jobs as fields of a task file. docs/openai.md has the table."""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue

from gateway_svc.openai.errors import wrong_value
from gateway_svc.openai.parsing import Strict, not_honoured

Auto = Literal["auto"]
Multiplier = Annotated[float, Field(gt=0, le=1000)] | Auto
Positive = Annotated[int, Field(ge=1)] | Auto


def _is_default(value: JsonValue) -> JsonValue:
    if value not in (None, "default"):
        raise not_honoured("models have no such setting; marlaas.sampling.template sets what a chat template reads")
    return value


class HyperparametersIn(Strict):
    """`auto` is the default of the pool."""

    batch_size: Positive = "auto"
    """algorithm.groups_per_step"""
    eval_interval: Positive = "auto"
    """evaluation.every"""
    eval_samples: Positive = "auto"
    """evaluation.prompts"""
    learning_rate_multiplier: Multiplier = "auto"
    """Times the default of optimizer.learning_rate."""
    compute_multiplier: Multiplier = "auto"
    """Times the default of algorithm.group_size, rounded."""
    n_epochs: Positive = "auto"
    """Times the rows of the file, by the groups of a step: steps. One, for a file without `marlaas.steps`."""
    reasoning_effort: Annotated[Literal["default"] | None, BeforeValidator(_is_default)] = None

    def fields(self) -> Iterator[tuple[str, str, int]]:
        """Field of a task file, hyperparameter, value."""
        for name, path in FIELDS.items():
            value: int | Auto = getattr(self, name)
            if value != "auto":
                yield path, name, value

    @property
    def needs_defaults(self) -> bool:
        return self.learning_rate_multiplier != "auto" or self.compute_multiplier != "auto"

    def steps_for(self, rows: int, defaults: Mapping[str, JsonValue]) -> int:
        """Steps in which each row of a file is sampled so often. `defaults`: a task file with all values."""
        groups = _number(defaults, "algorithm", "groups_per_step")
        return math.ceil(rows * (1 if self.n_epochs == "auto" else self.n_epochs) / groups)

    def scaled(self, defaults: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Field of a task file → its default times the multiplier. `defaults`: a task file with all of them.

        Raises: Problem where a group would have fewer than two attempts.
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


FIELDS = {"batch_size": "algorithm.groups_per_step", "eval_interval": "evaluation.every", "eval_samples": "evaluation.prompts"}
"""Hyperparameter → field of a task file."""


def _number(values: Mapping[str, JsonValue], section: str, field: str) -> float:
    table = values.get(section)
    value = table.get(field) if isinstance(table, dict) else None
    assert isinstance(value, int | float), f"a completed task has {section}.{field}"
    return value
