"""Models whose fields, lists and objects are counted before they are validated: each wrong one would be an error, or several."""

from collections.abc import Iterator
from dataclasses import dataclass

from annotated_types import GroupedMetadata, MaxLen
from pydantic import BaseModel, BeforeValidator, model_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

MAX_UNKNOWN = 20
"""Maximum fields that a model does not have and that are each named in an error."""


@dataclass(frozen=True)
class Few(GroupedMetadata):
    """Of a list's or object's type, in `Annotated`: its maximum number of entries, checked before any of them is."""

    most: int

    def __iter__(self) -> Iterator[object]:
        yield MaxLen(self.most)
        yield BeforeValidator(self._counted)

    def _counted(self, value: object) -> object:
        if isinstance(value, list | tuple | dict) and (entries := len(value)) > self.most:
            raise PydanticKnownError("too_long", {"field_type": "List", "max_length": self.most, "actual_length": entries})
        return value


class FewEntries(BaseModel):
    """A model that names each field that it does not have, up to MAX_UNKNOWN of them."""

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, value: object) -> object:
        if isinstance(value, dict) and len(value) > MAX_UNKNOWN:  # rare: sections of each message come through here
            given, known = len(value), cls.model_fields
            if given > len(known) + MAX_UNKNOWN:
                said = {"given": given, "known": ", ".join(known)}
                raise PydanticCustomError("many_fields", "has {given} fields; known here: {known}", said)
        return value
