"""Validation of a task's options before anything is built: names, then types, with one clear message."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, get_type_hints

from pydantic import ConfigDict, JsonValue, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

from common.formats.wrong_values import field_of, reason_of
from env_svc.errors import WrongOptions

REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Option:
    """One option of an environment or tool."""

    name: str
    annotation: Any
    """Annotation; REQUIRED (empty) if there is none. `Any`: authors may write anything in place of a type."""
    default: object = REQUIRED


def options_of(constructor: Callable[..., object]) -> list[Option] | None:
    """The keyword arguments of a class; None if its constructor takes any keyword arguments and checks them itself."""
    parameters = inspect.signature(constructor).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    hints = _hints(constructor.__init__ if inspect.isclass(constructor) else constructor)
    keywords = [parameter for parameter in parameters if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)]
    return [Option(parameter.name, hints.get(parameter.name, REQUIRED), parameter.default) for parameter in keywords]


def validated_options(where: str, known: Sequence[Option], given: Mapping[str, JsonValue]) -> dict[str, Any]:
    """`given`, converted to the declared types. Raises: WrongOptions, naming `where`, the option and what was expected."""
    by_name = {option.name: option for option in known}
    for name in given:
        if name not in by_name:
            raise WrongOptions(f"{where} has no option '{name}'{suggestion(name, list(by_name))}")
    for option in known:
        if option.default is REQUIRED and option.name not in given:
            raise WrongOptions(f"{where} needs the option '{option.name}'")
    return {name: _converted(where, by_name[name], value) for name, value in given.items()}


def suggestion(name: str, known: Sequence[str], *, listed: Sequence[str] | None = None) -> str:
    """Last part of a message about an unknown name: near matches, or else the names `listed` (None: all known ones)."""
    if close := close_matches(name, known):
        return close
    if not known:
        return "; it has none"
    shown = sorted(known if listed is None else listed)
    return f"; known: {', '.join(shown[:30])}" + (", …" if len(shown) > 30 else "")


def close_matches(name: str, known: Sequence[str]) -> str:
    """Last part of a message about an unknown name: near matches; empty if there are none."""
    close = get_close_matches(name, known, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(repr(match) for match in close)}?" if close else ""


def _converted(where: str, option: Option, value: JsonValue) -> object:
    adapter = _adapter(option)
    if adapter is None:
        return tuple(value) if isinstance(value, list) and isinstance(option.default, tuple) else value
    try:
        return adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(filter(None, [option.name, field_of(first["loc"])]))
        raise WrongOptions(f"{where}: option '{field}': {reason_of(first)}") from None


def _adapter(option: Option) -> TypeAdapter[Any] | None:
    """None if the annotation cannot be relied on: absent, not a type, or contradicted by its own default."""
    if option.annotation is REQUIRED:
        return None
    try:
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(option.annotation, config=ConfigDict(allow_inf_nan=False))
        except PydanticUserError:  # dataclasses and models bring their own configuration
            adapter = TypeAdapter(option.annotation)
        if option.default is not REQUIRED and option.default is not None:
            adapter.validate_python(option.default)
    except (PydanticSchemaGenerationError, PydanticUserError, ValidationError):
        return None
    return adapter


def _hints(function: Callable[..., object]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError):
        return {}
