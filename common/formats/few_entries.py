"""Models whose fields, lists and objects are counted before they are validated: each wrong one would be an error, or several."""

from functools import cache
from typing import Any, cast

from annotated_types import MaxLen
from pydantic import BaseModel, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

MAX_UNKNOWN = 20
"""Maximum fields that a model does not have and that are each named in an error."""


class FewEntries(BaseModel):
    """`Any`: whatever a user has written."""

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, value: Any) -> Any:
        if isinstance(value, dict) and (given := len(cast("dict[str, Any]", value))) > len(cls.model_fields) + MAX_UNKNOWN:
            said = {"given": given, "known": ", ".join(cls.model_fields)}
            raise PydanticCustomError("many_fields", "has {given} fields; known here: {known}", said)
        return cast("Any", value)

    @field_validator("*", mode="before")
    @classmethod
    def _has_few_entries(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, list | tuple | dict) and (most := _max_length(cls, info.field_name or "")) is not None:
            entries = len(cast("list[Any] | dict[str, Any]", value))
            if entries > most:
                raise PydanticKnownError("too_long", {"field_type": "List", "max_length": most, "actual_length": entries})
        return cast("Any", value)


@cache
def _max_length(model: type[BaseModel], field: str) -> int | None:
    return next((one.max_length for one in model.model_fields[field].metadata if isinstance(one, MaxLen)), None)
