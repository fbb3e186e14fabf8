"""A form with every field of the task file, generated from its model; and task files from completed forms."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin

from pydantic import JsonValue
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from common.spec import Section, TaskSpec
from gateway_svc.bodies import read_json
from gateway_svc.problems import FieldError, Problem

Kind = Literal["text", "whole", "number", "choice", "json"]
FILLED_APART = ("tenant",)
"""Fields that the form leaves out, because the key determines them."""


@dataclass(frozen=True)
class Input:
    path: str
    """`section.field`; also the input's name in the form."""
    label: str
    kind: Kind
    hint: str
    default: str
    """Default as written in a task file; empty if there is none."""
    choices: Sequence[str]
    suggestions: Sequence[str]
    """Suggested values; others may be typed."""
    value: str
    error: str

    @property
    def is_required(self) -> bool:
        return self.path in ("name", "pool", "steps", "environment.name")


@dataclass(frozen=True)
class Fieldset:
    title: str
    hint: str
    inputs: Sequence[Input]

    @property
    def is_open(self) -> bool:
        """Whether it is shown expanded: an input is required, filled in or invalid."""
        return any(one.is_required or one.value or one.error for one in self.inputs)


@dataclass(frozen=True)
class TaskForm:
    fieldsets: Sequence[Fieldset]
    general: Sequence[str] = ()
    """Errors about the whole task."""
    tenant_error: str = ""

    @property
    def first_wrong(self) -> str:
        """Path of the first invalid input, which gets the focus; empty if there is none."""
        if self.tenant_error:
            return "tenant"
        return next((one.path for part in self.fieldsets for one in part.inputs if one.error), "")


@dataclass(frozen=True)
class Filled:
    """Values that a user entered, and errors about them."""

    values: Mapping[str, str] = field(default_factory=dict)
    """Path → entered text."""
    errors: Sequence[FieldError] = ()


@dataclass(frozen=True)
class FormChoices:
    """Names offered for selection."""

    pools: Sequence[str] = ()
    environments: Sequence[str] = ()


def task_form(filled: Filled, offers: FormChoices = FormChoices()) -> TaskForm:
    """Build the form with entered values and errors at their fields."""
    known = {path for path, _ in _leaves()} | {*FILLED_APART}
    errors: dict[str, str] = {}
    for error in filled.errors:
        path = _known_path(error.field, known)
        reason = error.reason if path == error.field else f"{error.field}: {error.reason}"
        errors[path] = "; ".join(filter(None, [errors.get(path, ""), reason]))
    sections = {name: info.annotation for name, info in TaskSpec.model_fields.items()}
    general = Fieldset("Task", "", _inputs("", TaskSpec, filled.values, errors, offers))
    others = [
        Fieldset(name, _doc(model), _inputs(f"{name}.", model, filled.values, errors, offers))
        for name, model in sections.items()
        if isinstance(model, type) and issubclass(model, Section)
    ]
    return TaskForm([general, *others], [errors[""]] if "" in errors else [], errors.get("tenant", ""))


def _known_path(path: str, known: Collection[str]) -> str:
    """The form field that contains a path, such as `evaluation.protocol` for `evaluation.protocol.0.seed`; empty if none does."""
    while path and path not in known:
        path = path.rpartition(".")[0]
    return path


def read_form(values: Mapping[str, str]) -> dict[str, JsonValue]:
    """Task file from a completed form. Invalid numbers and JSON stay text, which the check of the task refuses."""
    found: dict[str, JsonValue] = {}
    for name, info in _leaves():
        given = values.get(name, "").strip()
        if given:
            section, _, leaf = name.rpartition(".")
            table = found.setdefault(section, {}) if section else found
            assert isinstance(table, dict)
            table[leaf] = _value(given, _kind(info))
    return found


def filled_from(spec: Mapping[str, JsonValue]) -> dict[str, str]:
    """Form values for a spec: path → text."""
    found: dict[str, str] = {}
    for name, info in _leaves():
        section, _, leaf = name.rpartition(".")
        table = spec.get(section) if section else spec
        value = table.get(leaf) if isinstance(table, dict) else None
        if value is not None and value != {} and value != []:
            found[name] = value if isinstance(value, str) and _kind(info) != "json" else json.dumps(value, ensure_ascii=False)
    return found


def _leaves() -> list[tuple[str, FieldInfo]]:
    """All fields that are no sections: (path, field)."""
    found: list[tuple[str, FieldInfo]] = []
    for name, info in TaskSpec.model_fields.items():
        model = info.annotation
        if isinstance(model, type) and issubclass(model, Section):
            found += [(f"{name}.{leaf}", leaf_info) for leaf, leaf_info in model.model_fields.items()]
        elif name not in FILLED_APART:
            found.append((name, info))
    return found


def _inputs(prefix: str, model: type[Section], values: Mapping[str, str], errors: Mapping[str, str], offers: FormChoices) -> list[Input]:
    return [
        Input(
            path=f"{prefix}{name}",
            label=name,
            kind=_kind(info),
            hint=" ".join((info.description or "").split()),
            default=_default(info),
            choices=offers.pools if f"{prefix}{name}" == "pool" else _choices(info.annotation),
            suggestions=offers.environments if f"{prefix}{name}" == "environment.name" else (),
            value=values.get(f"{prefix}{name}", ""),
            error=errors.get(f"{prefix}{name}", ""),
        )
        for name, info in model.model_fields.items()
        if not (isinstance(info.annotation, type) and issubclass(info.annotation, Section)) and f"{prefix}{name}" not in FILLED_APART
    ]


def _kind(info: FieldInfo) -> Kind:
    plain = _plain(info.annotation)
    if _choices(info.annotation):
        return "choice"
    if plain is int:
        return "whole"
    if plain is float:
        return "number"
    return "text" if plain is str else "json"


def _plain(annotation: Any) -> Any:
    """The type without None and without bounds. `Any`: annotations have no common type."""
    kept = [part for part in get_args(annotation) if part is not type(None)]
    if get_origin(annotation) is not None and type(None) in get_args(annotation) and len(kept) == 1:
        return _plain(kept[0])
    return annotation


def _choices(annotation: Any) -> Sequence[str]:
    plain = _plain(annotation)
    if plain is bool:
        return ("true", "false")
    return get_args(plain) if get_origin(plain) is Literal else ()


def _default(info: FieldInfo) -> str:
    if info.default is PydanticUndefined or info.default is None or info.default in ((), {}):
        return ""
    return info.default if isinstance(info.default, str) else json.dumps(info.default)


def _doc(model: type[Section]) -> str:
    return " ".join((model.__doc__ or "").split())


def _value(text: str, kind: Kind) -> JsonValue:
    match kind:
        case "text":
            return text
        case "choice":
            return {"true": True, "false": False}.get(text, text)
        case "whole":
            return int(text) if text.lstrip("-").isascii() and text.lstrip("-").isdigit() and len(text) < 20 else text
        case "number":
            return _number(text)
        case "json":
            return _json(text)


def _number(text: str) -> JsonValue:
    try:
        found = float(text)
    except ValueError:
        return text
    return found if found - found == 0 else text


def _json(text: str) -> JsonValue:
    """Parse strict JSON, as request bodies are; invalid JSON stays text."""
    try:
        return read_json(text.encode(errors="replace"))
    except Problem:
        return text
