"""Writes the pages that are made from the code: `python -m docs.generate`. A test fails when they are out of date."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from common.pools import Accelerator, Pool
from common.runtime.settings import SERVICES, Settings, describe
from common.spec import DEFAULTS_BY_LOSS, Algorithm, Section, TaskSpec
from docs import interface, schemas, subjects

FOLDER = Path(__file__).parent


def pages() -> dict[str, Callable[[], str]]:
    """File name → what makes its content."""
    return {
        "task-file.md": task_file,
        "settings.md": settings,
        "subjects.md": subjects.page,
        schemas.file_name(): schemas.submit_task,
        interface.FILE: interface.document,
        "openai.md": lambda: interface.openai_page((FOLDER / "openai.md").read_text()),
        "http.md": lambda: interface.page((FOLDER / "http.md").read_text()),
    }


def task_file() -> str:
    lines = [
        "# The task file",
        "",
        "Made from `common/spec` by `python -m docs.generate`. Unknown keys are errors; absent ones take the default.",
        "",
        "```toml",
        *_fields(TaskSpec, sections=False),
    ]
    for name, field in TaskSpec.model_fields.items():
        if _is_section(field):
            lines += ["", f"[{name}]", *_doc(field.annotation), *_fields(field.annotation, sections=True), *_tables(name, field.annotation)]
    lines += ["```", "", "## Pools", "", "What a deployment offers is `pools.toml`, one table a pool:", "", "```toml", "[tiny]"]
    lines += [*_fields(Pool, sections=True), "```", "", "and one a [shared accelerator](pools.md):", "", "```toml", "[accelerator.a]"]
    return "\n".join([*lines, *_fields(Accelerator, sections=True), "```", ""])


def settings() -> str:
    from importlib import import_module

    lines = ["# Settings", "", "Environment variables, made from the code by `python -m docs.generate`. An unknown name stops the process."]
    for service in SERVICES:
        module = import_module(f"{service.lower()}_svc.settings")
        found = next(value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Settings) and value.service)
        lines += ["", f"## {service.lower()}_svc", "", "```", describe(found), "```"]
    return "\n".join([*lines, ""])


def _fields(model: type[BaseModel], *, sections: bool) -> list[str]:
    lines = []
    for name, field in model.model_fields.items():
        if _table(field) or (_is_section(field) and not sections):
            continue
        note = " ".join((field.description or "").split())
        if get_origin(field.annotation) is Literal:
            note = f"one of {', '.join(map(str, get_args(field.annotation)))}. {note}".strip()
        by_loss = [f"{_shown(said[name])} with `{loss}`" for loss, said in DEFAULTS_BY_LOSS.items() if model is Algorithm and name in said]
        note += f" Default by loss: {', '.join([*by_loss, f'else {_default(field)}'])}." if by_loss else ""
        unset = "# " if field.default is None else ""
        lines.append(f"{unset}{name} = {_default(field)}" + (f"  # {note}" if note else ""))
    return lines


def _tables(section: str, model: type[BaseModel]) -> list[str]:
    """Tables of an array, where a section has one."""
    lines = []
    for name, field in model.model_fields.items():
        if (table := _table(field)) is not None:
            lines += ["", f"[[{section}.{name}]]", *_doc(table), *_fields(table, sections=True)]
    return lines


def _table(field: FieldInfo) -> type[Section] | None:
    """Section of which the field holds any number."""
    found = get_args(field.annotation)[0] if get_origin(field.annotation) is tuple else None
    return found if isinstance(found, type) and issubclass(found, Section) else None


def _is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, Section)


def _doc(model: type[BaseModel]) -> list[str]:
    return [f"# {' '.join((model.__doc__ or '').split())}"]


def _default(field: FieldInfo) -> str:
    if field.is_required() or field.default is None:
        return "…"
    return _shown(field.get_default(call_default_factory=True))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, StrEnum):
        return f'"{value}"'
    return repr(list(value)).replace("'", '"') if isinstance(value, tuple) else repr(value).replace("'", '"')


if __name__ == "__main__":
    for page, make in pages().items():
        (FOLDER / page).write_text(make())
