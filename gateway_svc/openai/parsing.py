"""Parses requests so that no field is ignored: each is honoured, harmless, or refused by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, JsonValue, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from common.formats.bounds import FewEntries
from common.formats.wrong_values import MAX_NAME_CHARS, reason_of
from gateway_svc.openai.errors import missing, unsupported, wrong_value
from gateway_svc.problems import Problem

MAX_METADATA = 16
"""Maximum entries of `metadata`."""


@dataclass(frozen=True)
class Harmless:
    """A field that cannot change an answer."""

    values: str
    """Permitted values, as documentation text."""
    permits: Callable[[JsonValue], bool]
    reason: str
    """Reason why it cannot change an answer."""


def _is_text(value: JsonValue) -> bool:
    return isinstance(value, str)


def _only(*values: JsonValue) -> Callable[[JsonValue], bool]:
    return lambda value: any(value == one and type(value) is type(one) for one in values)


HARMLESS: Mapping[str, Harmless] = {
    "store": Harmless("`false`", _only(False), "nothing is stored"),
    "user": Harmless("any text", _is_text, "it names the caller's end user for abuse monitoring, which there is not"),
    "safety_identifier": Harmless("any text", _is_text, "as `user`"),
    "prompt_cache_key": Harmless("any text", _is_text, "equal beginnings of prompts are found by their tokens, within a tenant"),
    "prompt_cache_retention": Harmless("`in_memory`", _only("in_memory"), "the prefix cache is in memory"),
    "service_tier": Harmless("`auto`, `default`", _only("auto", "default"), "there is one tier"),
    "modalities": Harmless('`["text"]`', _only(["text"]), "answers are text"),
    "background": Harmless("`false`", _only(False), "every answer is awaited"),
    "truncation": Harmless("`disabled`", _only("disabled"), "a prompt that is too long is refused"),
    "echo": Harmless("`false`", _only(False), "an answer does not repeat its prompt"),
}
"""Top-level field → its harmless values."""

_STATELESS = "answers are not stored, so that nothing can be continued or named; send the whole conversation"
CONSTRAINED = "it needs constrained decoding, which the engine does not offer"
REFUSED: Mapping[str, str] = {
    "audio": "answers are text",
    "modalities": "answers are text",
    "prediction": "there is no speculative decoding",
    "functions": "use `tools`",
    "function_call": "use `tool_choice`",
    "web_search_options": "there are no hosted tools",
    "moderation": "there is no moderation",
    "reasoning_effort": "models have no such setting; `chat_template_kwargs` sets what a chat template reads",
    "reasoning": "models have no such setting; `chat_template_kwargs` sets what a chat template reads",
    "verbosity": "models have no such setting",
    "prompt_cache_options": "the prefix cache has no breakpoints",
    "store": "nothing is stored",
    "previous_response_id": _STATELESS,
    "conversation": _STATELESS,
    "prompt": "there are no stored prompts",
    "background": "every answer is awaited",
    "context_management": "a prompt that is too long is refused",
    "truncation": "a prompt that is too long is refused",
    "max_tool_calls": "there are no hosted tools, whose calls it bounds",
    "access_programs": "there are none",
    "image": "images are not read",
    "suffix": "text is continued, not filled in",
    "echo": "an answer does not repeat its prompt",
    "prompt_cache_retention": "the prefix cache is in memory",
    "service_tier": "there is one tier",
    "guided_json": CONSTRAINED,
    "structured_outputs": CONSTRAINED,
}
"""Field of OpenAI's requests that would change an answer, and is refused unless HARMLESS permits its value → the reason. All other fields
are refused as unknown."""


R = TypeVar("R", bound=BaseModel)

MAX_BRANCHES = 16
"""Maximum validation errors examined: the first invalid field may have one per type of a union."""
UNSUPPORTED = "unsupported"
"""Type of validation errors for unsupported fields."""


class Strict(BaseModel):
    """Part of a request. Unknown names are errors, and no value is converted from another type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _has_known_fields(cls, raw: Any) -> Any:
        """Report only the first unknown field: the validator would create an error for each."""
        if isinstance(raw, dict) and (
            unknown := next((name for name in cast("dict[str, Any]", raw) if name not in cls.model_fields), None)
        ):
            raise not_honoured("there is no such field here", unknown)
        return cast("Any", raw)


def not_honoured(reason: str, param: str = "") -> PydanticCustomError:
    """Validation error for an unsupported field. `param`: its name, if the error's location is the whole request."""
    return PydanticCustomError(UNSUPPORTED, "{reason}", {"reason": reason, "param": param})


def _null_is_absent(value: JsonValue) -> JsonValue:
    if value is not None and value != []:
        raise not_honoured("it is not supported; leave it out")
    return None


Unset = Annotated[None, BeforeValidator(_null_is_absent)]
"""A field of OpenAI's answers that clients send back empty."""


class WholeRequest(Strict, FewEntries):
    """A request's body. Null counts as absent."""

    harmless: ClassVar[Mapping[str, Harmless]] = {}
    """Additional fields that cannot change an answer."""
    refused: ClassVar[Mapping[str, str]] = {}
    """Field that is refused unless `harmless` permits its value → the reason."""

    @model_validator(mode="before")
    @classmethod
    def _has_nothing_that_is_ignored(cls, raw: Any) -> Any:
        """Remove harmless and absent fields; refuse the others. `Any`: the unchecked body."""
        if not isinstance(raw, dict):
            raise ValueError("the body is a JSON object")
        body: dict[str, JsonValue] = raw
        return {name: value for name, value in body.items() if _is_honoured(cls, name, value)}


def parse_request(model: type[R], body: JsonValue) -> R:
    """Parse the request in `body`. Raises: Problem that names the first invalid or unsupported field."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise problem_of(error.errors(), body) from None


def _is_honoured(model: type[WholeRequest], name: str, value: JsonValue) -> bool:
    """Whether the model reads the field. Raises: PydanticCustomError if the field is neither honoured nor harmless."""
    if name in model.model_fields:
        return value is not None
    harmless, refused = model.harmless.get(name), model.refused.get(name)
    if harmless is not None and (value is None or harmless.permits(value)):
        return False
    if refused is not None and value is None:
        return False
    if harmless is not None:
        raise not_honoured(refused or f"it may be {harmless.values} only", name)
    raise not_honoured(refused or "there is no such field here", name)


def problem_of(details: Sequence[ErrorDetails], body: JsonValue) -> Problem:
    """Problem for an invalid body: the first field that the validator names."""
    first, *others = details[:MAX_BRANCHES]
    kind, place = first["type"], _path(first["loc"], body)
    named = first.get("ctx", {}).get("param")
    param = _path([*first["loc"], str(named)], body) if named else place
    reason = reason_of(first, *(other for other in others if place and _path(other["loc"], body) == place))
    if kind == "extra_forbidden":
        return unsupported(param, "there is no such field here")
    if kind in (UNSUPPORTED, "union_tag_invalid", "union_tag_not_found"):
        return unsupported(param, reason)
    return missing(param) if kind == "missing" else wrong_value(param or _first_word_in(reason, body), reason)


def _first_word_in(reason: str, body: JsonValue) -> str:
    """The field at the start of a reason that concerns several fields; empty if there is none."""
    word = reason.split(" ", 1)[0]
    return word if isinstance(body, dict) and word in body else ""


def _path(location: Sequence[int | str], body: JsonValue) -> str:
    """Path such as `messages[0].content`; the validator's own parts, such as tags of unions, are left out."""
    found, value = "", body
    for number, part in enumerate(location):
        is_last = number == len(location) - 1
        if isinstance(part, int) and isinstance(value, list):
            found, value = f"{found}[{part}]", value[part] if part < len(value) else None
        elif isinstance(part, str) and isinstance(value, dict) and (part in value or (is_last and part.isidentifier())):
            name = part[:MAX_NAME_CHARS]
            found, value = f"{found}.{name}" if found else name, value.get(part)
    return found
