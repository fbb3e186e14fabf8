"""Requests as values: each field is honoured, harmless or refused by name, and none is ignored."""

from collections.abc import Mapping
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, JsonValue, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from gateway_svc.openai.errors import missing, unsupported, wrong_value
from gateway_svc.openai.fields import HARMLESS, REFUSED
from gateway_svc.problems import Problem

R = TypeVar("R", bound=BaseModel)

UNSUPPORTED = "unsupported"
"""Type of the validation errors that name what is not honoured."""


class Strict(BaseModel):
    """A part of a request. Unknown names are errors, and no value is converted from another type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


def not_honoured(reason: str) -> PydanticCustomError:
    return PydanticCustomError(UNSUPPORTED, "{reason}", {"reason": reason})


def _null_is_absent(value: JsonValue) -> JsonValue:
    if value is not None and value != []:
        raise not_honoured("it is not supported; leave it out")
    return None


Unset = Annotated[None, BeforeValidator(_null_is_absent)]
"""A field that answers of OpenAI's have, and that clients send back empty."""


def parse_request(model: type[R], body: JsonValue) -> R:
    """The request in `body`. Raises: Problem naming the first field that is wrong or not honoured."""
    if not isinstance(body, dict):
        raise wrong_value("", "the body is a JSON object")
    given = {name: value for name, value in body.items() if _is_honoured(model, name, value)}
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise _problem_of(error.errors()[0], given) from None


def _is_honoured(model: type[BaseModel], name: str, value: JsonValue) -> bool:
    """Whether the model reads it; null counts as absent. Raises: Problem for what is neither honoured nor harmless."""
    if name in model.model_fields:
        return value is not None
    harmless = HARMLESS.get(name)
    if harmless is not None and (value is None or harmless.permits(value)):
        return False
    if name in REFUSED and value is None:
        return False
    if name in REFUSED or harmless is not None:
        raise unsupported(name, REFUSED.get(name) or f"it may be {harmless.values if harmless else ''} only")
    raise unsupported(name, "there is no such field here")


def _problem_of(error: ErrorDetails, body: Mapping[str, JsonValue]) -> Problem:
    param, reason = _path(error["loc"], body), error["msg"].removeprefix("Value error, ")
    if error["type"] == UNSUPPORTED:
        return unsupported(param, reason)
    if error["type"] == "extra_forbidden":
        return unsupported(param, "there is no such field here")
    if error["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return unsupported(param, reason)
    if error["type"] == "missing":
        return missing(param)
    return wrong_value(param or _first_word_in(reason, body), reason)


def _first_word_in(reason: str, body: Mapping[str, JsonValue]) -> str:
    """The field that a reason about several fields begins with."""
    word = reason.split(" ", 1)[0]
    return word if word in body else ""


def _path(location: tuple[int | str, ...], body: JsonValue | Mapping[str, JsonValue]) -> str:
    """`messages[0].content`; the validator's own parts, such as tags of unions, are left out."""
    found, value = "", body
    for number, part in enumerate(location):
        is_last = number == len(location) - 1
        if isinstance(part, int) and isinstance(value, list):
            found, value = f"{found}[{part}]", value[part] if part < len(value) else None
        elif isinstance(part, str) and isinstance(value, Mapping) and (part in value or (is_last and part.isidentifier())):
            found, value = f"{found}.{part}" if found else part, value.get(part)
    return found
