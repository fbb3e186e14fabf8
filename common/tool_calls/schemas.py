"""JSON schemas of tools' parameters, as far as the grammar of calls needs them. Pure; an invalid schema allows everything."""

from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from pydantic import JsonValue

from common.formats import strict_json

Schema = dict[str, JsonValue]
"""JSON schema of a tool's parameters."""
ALL = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
"""Names of JSON's types."""
TEXT = frozenset({"string"})
OF_PYTHON = {"True": "true", "False": "false", "None": "null"}
"""Python literals, as printed by chat templates → JSON."""


def text_parameter(schema: Schema) -> str | None:
    """The parameter that a plain tag fills: the only required, or only, parameter, if it is a string; else None."""
    properties, required = _properties(schema), schema.get("required")
    names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    match names or list(properties):
        case [name] if name in properties and Types(schema).of(properties[name]) == TEXT:
            return name
        case _:
            return None


def values_of(texts: Mapping[str, str], schema: Schema) -> dict[str, JsonValue]:
    """Arguments parsed from their texts: as JSON if the value's type is one that the parameter's schema names, else as text."""
    properties, types = _properties(schema), Types(schema)
    return {name: _value(text, types.of(properties.get(name))) for name, text in texts.items()}


class Types:
    """Types allowed by the parts of one schema; each reference is resolved once."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._known: dict[str, frozenset[str]] = {}

    def of(self, schema: JsonValue) -> frozenset[str]:
        """Names of the allowed types; ALL also for a schema that names none."""
        if not isinstance(schema, dict):
            return ALL
        found = ALL
        for name, rule in schema.items():
            match name, rule:
                case "type", str() | list():
                    found &= _with_integers({rule} if isinstance(rule, str) else {one for one in rule if isinstance(one, str)})
                case "const", _:
                    found &= names_of(rule)
                case "enum", list():
                    found &= frozenset[str]().union(*map(names_of, rule))
                case "anyOf" | "oneOf", list():
                    found &= frozenset[str]().union(*map(self.of, rule))
                case "allOf", list():
                    found &= ALL.intersection(*map(self.of, rule))
                case "$ref", str():
                    found &= self._of_reference(rule)
                case _:
                    pass
        return found

    def _of_reference(self, reference: str) -> frozenset[str]:
        if reference not in self._known:
            self._known[reference] = ALL  # for a reference that leads to itself
            self._known[reference] = self.of(_at(self._root, reference))
        return self._known[reference]


def names_of(value: JsonValue) -> frozenset[str]:
    """Names of a value's types; a whole number has two."""
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"number"})
        case str():
            return TEXT
        case list():
            return frozenset({"array"})
        case _:
            return frozenset({"object"})


def _properties(schema: Schema) -> dict[str, JsonValue]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _value(text: str, types: frozenset[str]) -> JsonValue:
    if types in (ALL, TEXT):
        return text
    try:
        value = strict_json.read(OF_PYTHON.get(text.strip(), text))
    except (ValueError, RecursionError):
        return text
    return value if names_of(value) & types - TEXT else text


def _with_integers(names: set[str]) -> frozenset[str]:
    return frozenset(names | {"integer"} if "number" in names else names)


def _at(root: JsonValue, reference: str) -> JsonValue:
    """Target of a reference such as `#/$defs/Place`; `true`, which allows everything, for other kinds of references and missing targets."""
    if not reference.startswith("#"):
        return True
    found = root
    for step in _steps(unquote(reference[1:])):
        match found:
            case dict() if step in found:
                found = found[step]
            case list() if step.isdecimal() and int(step) < len(found):
                found = found[int(step)]
            case _:
                return True
    return found


def _steps(pointer: str) -> Iterator[str]:
    for step in pointer.split("/")[1:]:
        yield step.replace("~1", "/").replace("~0", "~")
