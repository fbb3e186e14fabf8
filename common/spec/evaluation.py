"""Sections of a task file about evaluations: prompts, sampling, and frequency."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, model_validator

from common.formats.bounds import Few
from common.spec.sections import Name, Section

MAIN_PROTOCOL = "main"
"""Name of an evaluation's only protocol, if the task names none."""


class Questions(Section):
    """Held-out prompts, and how they are sampled."""

    prompts: int = Field(default=64, ge=1, le=4096)
    attempts: int = Field(default=1, ge=1, le=256)
    """Attempts at each prompt; pass@k is reported for k up to it."""
    temperature: float = Field(default=0.0, ge=0, le=5)
    """Sampling temperature; 0: greedy decoding."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the prompts. Training uses other rows and seeds."""
    success: float = 1.0
    """Minimum reward of an attempt that passes."""
    options: dict[str, JsonValue] = {}
    """Environment options that override the task's, such as another split of a small data set."""

    def check_attempts(self) -> None:
        """Raises: ValueError if the attempts at a prompt would be (nearly) identical."""
        if 0 < self.temperature < 0.01:
            raise ValueError(f"temperature is {self.temperature:g}: use 0 for the likeliest tokens, or 0.01 and more")
        if self.temperature == 0 and self.attempts > 1:
            raise ValueError(f"attempts is {self.attempts}, but at temperature 0 they would all be the same")


class Protocol(Questions):
    """One of several protocols of an evaluation. Unset fields are taken from `[evaluation]`; `options` are replaced as a whole.
    The first protocol decides for `[keep]` and `[stop]`.
    """

    name: Name
    """Name in events and tables, unique in the task."""

    @model_validator(mode="after")
    def _attempts_differ(self) -> Self:
        self.check_attempts()
        return self


class Evaluation(Questions):
    """Held-out prompts, the same each time, answered by a newly trained version. They are never trained on."""

    every: int = Field(default=0, ge=0, le=1_000_000)
    """Steps between evaluations; 0: none. Version 0 and the last version are evaluated as well."""
    decide_by: Literal["lower_bound", "mean"] = "lower_bound"
    """Statistic by which `keep.best` and `[stop]` judge a version: the lower bound of the mean reward's 95 % interval, or the mean
    itself."""
    protocol: Annotated[tuple[Protocol, ...], Few(8)] = ()
    """Protocols of this evaluation; without any, this section is the only one, and its name is `main`."""

    @cached_property
    def protocols(self) -> tuple[Protocol, ...]:
        """Every protocol, at least one; the first decides."""
        return self.protocol or (Protocol(name=MAIN_PROTOCOL, **{name: getattr(self, name) for name in Questions.model_fields}),)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        copied = super().model_copy(update=update, deep=deep)
        vars(copied).pop("protocols", None)  # computed from the fields before the update
        return copied

    def named(self, name: str) -> Protocol:
        return next(one for one in self.protocols if one.name == name)

    @property
    def prompts_in_all(self) -> int:
        """Prompts of one version's evaluation, summed over all protocols."""
        return sum(one.prompts for one in self.protocols)

    @model_validator(mode="before")
    @classmethod
    def _protocols_take_what_they_do_not_set(cls, raw: Any) -> Any:
        """Fill in defaults that depend on other fields; stored and sent tasks contain them."""
        match raw:
            case {"protocol": [*tables]}:
                shared = {name: raw[name] for name in Questions.model_fields if name in raw}
                return {**raw, "protocol": [{**shared, **table} if isinstance(table, dict) else table for table in tables]}
            case _:
                return raw

    @model_validator(mode="after")
    def _protocols_are_distinct(self) -> Self:
        if not self.protocol:
            self.check_attempts()
        names = [one.name for one in self.protocol]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"protocol has two tables named '{repeated[0]}'; give each a name of its own")
        return self
