"""Preview: a task as the scheduler would accept it."""

import json
from dataclasses import dataclass

from pydantic import JsonValue

from common.client_api.errors import rejection_reasons
from common.messages import Event

MAX_ALIGNED = 60
"""Maximum length of a line whose origin is aligned with the origins of other lines."""


@dataclass(frozen=True)
class Preview:
    reasons: list[str]
    """Reasons for which the task would be rejected; empty if none is known. The environment is checked only at submission."""
    spec: dict[str, JsonValue]
    """Every value of the task; empty if the task cannot be read."""
    sources: dict[str, str]
    """`section.field` → origin of its value: `task`, a pool, a profile, a loss, another field, or `built-in`."""

    @classmethod
    def of(cls, answer: Event) -> "Preview":
        spec, sources = answer.data.get("spec"), answer.data.get("sources")
        named = {name: str(source) for name, source in sources.items()} if isinstance(sources, dict) else {}
        return cls(rejection_reasons(answer), spec if isinstance(spec, dict) else {}, named)

    def lines(self) -> list[str]:
        """Lines of a task file with every value that is set, each with its origin."""
        fields = {name: value for name, value in self.spec.items() if name in self.sources}
        found = self._lines(fields, prefix="")
        for name, section in self.spec.items():
            if isinstance(section, dict) and name not in fields and (lines := self._lines(section, prefix=f"{name}.")):
                found += ["", f"[{name}]", *lines]
        return found

    def _lines(self, fields: dict[str, JsonValue], prefix: str) -> list[str]:
        written = {name: f"{name} = {_toml(value)}" for name, value in fields.items() if value is not None}
        width = max((len(line) for line in written.values() if len(line) <= MAX_ALIGNED), default=0)
        return [f"{line:{width}}  # {self.sources.get(f'{prefix}{name}', '?')}" for name, line in written.items()]


def _toml(value: JsonValue) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return _quoted(value)
        case list():
            return f"[{', '.join(_toml(one) for one in value)}]"
        case dict():
            written = ", ".join(f"{_quoted(name)} = {_toml(one)}" for name, one in value.items() if one is not None)
            return f"{{ {written} }}" if written else "{}"
        case _:
            return str(value)


def _quoted(text: str) -> str:
    """A basic string of TOML, which has the same escapes as JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
