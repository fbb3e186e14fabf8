"""Options of reasoning-gym's data sets that a task may give.

The library opens some texts of a configuration as files (`spell_backward`'s `data_file`) and evaluates others as code (the symbols of
`simple_integration`). So a text is refused unless it is one of the option's default, or plain words, which name no file and call nothing.
"""

import dataclasses
import enum
import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import JsonValue
from reasoning_gym.factory import DATASETS

from env_svc.errors import WrongOptions
from env_svc.options import Option

OF_THE_TASK = ("seed", "size")
"""Fields that come from the task's rows."""
WORDS = re.compile(r"[^\W_]+(?: [^\W_]+)*", re.ASCII)
MAX_CHARS = 40
CLOSED = (int, float, bool, type(None), date, time, datetime)
"""Types whose values are no free text."""


def options_of(dataset: str) -> list[Option]:
    """The data set's own configuration, without what comes from the task."""
    hints = get_type_hints(DATASETS[dataset][1])
    return [Option(field.name, hints[field.name], _default(field)) for field in _fields(dataset)]


def check_texts(where: str, dataset: str, options: Mapping[str, JsonValue]) -> None:
    """Raises: WrongOptions for a text that a task may not give, also in a configuration inside that of `composite`."""
    for option in options_of(dataset):
        value = options.get(option.name)
        if value is None or _is_closed(option.annotation):
            continue
        if dataset == "composite" and option.name == "datasets":
            _check_parts(where, value)
            continue
        known = {*_texts(option.default)}
        for text in _texts(value):
            if text not in known and not (len(text) <= MAX_CHARS and WORDS.fullmatch(text)):
                allowed = f"words of letters and digits, or of {sorted(known)!r:.200}"
                raise WrongOptions(f"{where}: option '{option.name}' may hold {allowed} (given: {text!r:.60})")


def _check_parts(where: str, parts: JsonValue) -> None:
    for part in parts if isinstance(parts, list) else []:
        if isinstance(part, dict):
            name, config = part.get("name"), part.get("config") or {}
            if not isinstance(name, str) or name not in DATASETS or not isinstance(config, dict):
                raise WrongOptions(
                    f"{where}: option 'datasets': expected the name of a data set and its configuration (given: {part!r:.60})"
                )
            check_texts(f"{where}, '{name}'", name, config)


def _texts(value: object) -> Iterator[str]:
    """All texts in a value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from (*_texts(key), *_texts(one))
    elif isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from _texts(one)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from (field.name, *_texts(getattr(value, field.name)))


def _is_closed(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Literal:
        return True
    if origin in (Union, UnionType, list, tuple):
        return all(one is Ellipsis or _is_closed(one) for one in get_args(hint))
    return hint in CLOSED or (isinstance(hint, type) and issubclass(hint, enum.Enum))


def _fields(dataset: str) -> "list[dataclasses.Field[Any]]":
    return [field for field in dataclasses.fields(DATASETS[dataset][1]) if field.name not in OF_THE_TASK]


def _default(field: "dataclasses.Field[Any]") -> object:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None
