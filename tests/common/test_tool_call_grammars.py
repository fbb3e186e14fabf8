"""Both notations of calls, against what chat templates print: what a template wrote is read as it was."""

import json
import random
from collections.abc import Callable
from typing import Any, cast

import pytest
from pydantic import JsonValue

from common.formats import strict_json
from common.tool_calls import MalformedCall, Schema, ToolCall, find_calls, without_calls
from common.tool_calls.schemas import ALL, TEXT, Types, names_of, text_parameter

CALLS = 10_000
TAGS = (
    "<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=a>", "</parameter>", "<think>", "</think>", "<search>",
    "</search>",
)  # fmt: skip
PIECES = (
    *TAGS,
    "\n",
    " ",
    '"',
    "'",
    "\\",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "é",
    "\u2028",
    "\x85",
    "🙂",
    "a",
    "true",
    "null",
    "3",
    "-1.5e3",
    "</",
    ">",
)
TYPES: tuple[Schema, ...] = (
    {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}, {"type": "null"}, {"type": "object"},
    {"type": "array"},
    {"type": ["string", "null"]}, {"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"oneOf": [{"type": "boolean"}, {"type": "array"}]},
    {"$ref": "#/$defs/Place"}, {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]}, {"allOf": [{"$ref": "#/$defs/Count"}]},
    {"enum": ["red", "green"]}, {"const": 7}, {"anyOf": [{"type": "string"}, {"type": "object"}]},
)  # fmt: skip
SCHEMAS: tuple[JsonValue, ...] = (*TYPES, True, {}, {"description": "any"})
DEFINITIONS: Schema = {"Place": {"type": "object", "properties": {"x": {"type": "integer"}}}, "Count": {"type": "integer"}}
FILLED: dict[str, Schema] = {"search": {"properties": {"query": {"type": "string"}}, "required": ["query"]}}


def hermes(call: ToolCall) -> str:
    return f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {json.dumps(call.arguments, ensure_ascii=False)}}}\n</tool_call>'


def qwen_coder(call: ToolCall) -> str:
    """As its template has it: objects and lists as JSON, all else as Jinja prints it."""
    parameters = "".join(f"<parameter={key}>\n{printed(one)}\n</parameter>\n" for key, one in call.arguments.items())
    return f"<tool_call>\n<function={call.name}>\n{parameters}</function>\n</tool_call>"


def printed(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)


class Maker:
    """Random calls of random tools."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def text(self) -> str:
        return "".join(self.random.choices(PIECES, k=self.random.randrange(8)))

    def value(self, depth: int = 2) -> JsonValue:
        kinds: list[Callable[[], JsonValue]] = [
            self.text,
            lambda: self.random.randrange(-(10**20), 10**20),
            lambda: self.random.uniform(-9, 9),
        ]
        kinds += [lambda: self.random.random() < 0.5, lambda: None]
        if depth:
            kinds += [lambda: [self.value(depth - 1) for _ in range(self.random.randrange(3))]]
            kinds += [lambda: {self.text(): self.value(depth - 1) for _ in range(self.random.randrange(3))}]
        return self.random.choice(kinds)()

    def tool(self) -> tuple[Schema, dict[str, JsonValue]]:
        """A tool's schema, and arguments of types that it allows."""
        properties = {name: self.random.choice(SCHEMAS) for name in self.random.sample("abcdef", self.random.randrange(1, 4))}
        schema = cast("Schema", {"type": "object", "properties": properties, "$defs": DEFINITIONS})
        types = Types(schema)
        return schema, {name: self._of(types.of(rule)) for name, rule in properties.items()}

    def _of(self, types: frozenset[str]) -> JsonValue:
        while not names_of(value := self.value()) & types:
            pass
        return value


def test_what_hermes_prints_is_read_as_it_was() -> None:
    make = Maker(1)
    for _ in range(CALLS):
        schema, arguments = make.tool()
        call = ToolCall("f", arguments)
        text = f"{make.random.choice(['', 'So: ', '<think>no <tool_call></think>'])}{hermes(call)}\n{hermes(call)} Done."
        assert find_calls(text, {"f": schema, **FILLED}) == [call, call], text
        assert without_calls(hermes(call), {"f": schema}) == ""


def test_what_qwen_coder_prints_is_read_as_it_was_wherever_that_can_be_told() -> None:
    make, told = Maker(2), 0
    for _ in range(CALLS):
        schema, arguments = make.tool()
        types = {name: Types(schema).of(cast("Schema", schema["properties"])[name]) for name in arguments}
        if any(ends_a_parameter(printed(one)) for one in arguments.values()):
            continue
        expected = {name: as_read(one, types[name]) for name, one in arguments.items()}
        text = qwen_coder(ToolCall("f", arguments))
        told += 1
        assert find_calls(f"{text} and {text}", {"f": schema, **FILLED}) == [ToolCall("f", expected)] * 2, text
    assert told > 0.9 * CALLS


def ends_a_parameter(text: str) -> bool:
    """Whether a text has an end of a parameter just before another parameter, or before the function's end."""
    return any(rest.lstrip().startswith(("<parameter=a>", "</function>")) for rest in text.split("</parameter>")[1:])


def as_read(value: JsonValue, types: frozenset[str]) -> JsonValue:
    """The value, or what else its print means: a text where any type is allowed, JSON where a text says it and its type is allowed."""
    if types in (ALL, TEXT):
        return printed(value)
    if not isinstance(value, str):
        return value
    try:
        said = strict_json.read({"None": "null", "True": "true", "False": "false"}.get(value.strip(), value))
    except ValueError:
        return value
    return said if names_of(said) & types - TEXT else value


LOOK: Schema = {
    "type": "object",
    "properties": {
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "deep": {"type": "boolean"},
        "at": {"$ref": "#/$defs/Place"},
        "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
        "code": {"type": ["string", "null"]},
        "any": True,
        "never": False,
        "round": {"$ref": "#/properties/round"},
        "lost": {"anyOf": [{"$ref": "#/$defs/Missing"}, {"type": "integer"}]},
        "choice": {"enum": [1, 2]},
    },
    "$defs": {"Place": {"type": "object"}},
}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("limit", "3", 3), ("limit", "null", None), ("limit", "None", None), ("limit", "many", "many"), ("deep", "True", True),
        ("deep", "false", False), ("deep", "1", "1"), ("at", '{"x": 1}', {"x": 1}), ("at", "here", "here"), ("tags", '["a"]', ["a"]),
        ("tags", "None", None), ("code", "123", "123"), ("code", "null", None), ("code", "{}", "{}"), ("any", "3", "3"), ("never", "3",
        "3"),
        ("round", "3", "3"), ("lost", "3", "3"), ("choice", "2", 2), ("unknown", "3", "3"), ("limit", "1e999", "1e999"), ("limit", "NaN",
        "NaN"),
    ],
)  # fmt: skip
def test_text_of_a_parameter_is_what_its_schema_says(name: str, text: str, value: JsonValue) -> None:
    reply = f"<tool_call>\n<function=look>\n<parameter={name}>\n{text}\n</parameter>\n</function>\n</tool_call>"
    assert find_calls(reply, {"look": LOOK}) == [ToolCall("look", {name: value})]


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"value": True}, "required": ["value"]}, {"properties": {"value": False}}, {"properties": True}, {"properties": [1]},
        {"properties": {"value": "s"}, "required": ["value"]}, {"properties": {"value": {"type": 3}}}, {"properties": {"v": {"$ref": 3}}},
        {"properties": {"value": {"$ref": "#/a/0/b"}}, "a": [1]}, {"properties": {"value": {"$ref": "https://example.org"}}},
        {"required": {"a": 1}}, {"required": [["a"]]}, {"properties": {"value": {"anyOf": {"a": 1}}}},
        {"properties": {"value": {"enum": 3}}},
    ],
)  # fmt: skip
def test_schema_of_any_shape_describes_what_it_can(schema: Schema) -> None:
    assert text_parameter(schema) is None
    assert find_calls("hello", {"tool": schema}) == []
    reply = "<tool_call><function=tool><parameter=value>3</parameter></function></tool_call>"
    assert find_calls(reply, {"tool": schema}) == [ToolCall("tool", {"value": "3"})]


def test_references_that_fan_out_are_followed_once_each() -> None:
    definitions: dict[str, Any] = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(200)}
    schema: Schema = {"properties": {"value": {"$ref": "#/$defs/d0"}}, "$defs": {**definitions, "d200": {"type": "integer"}}}
    reply = "<tool_call><function=tool><parameter=value>3</parameter></function></tool_call>"
    assert find_calls(reply, {"tool": schema}) == [ToolCall("tool", {"value": 3})]


@pytest.mark.parametrize(
    ("reply", "calls"),
    [
        ("<tool_call><function=f><parameter=a>1</tool_call><search>x</search>", 2),
        ('<tool_call>{"name": "f}</tool_call> <search>x</search>', 2),
        ('<tool_call>{"name": "f", "arguments": {"a": "</tool_call>', 1),
        ("<tool_call><function=f></tool_call><tool_call><function=f></function></tool_call>", 2),
    ],
)
def test_malformed_call_costs_no_other(reply: str, calls: int) -> None:
    first, *others = find_calls(reply, {"f": {}, **FILLED})
    assert isinstance(first, MalformedCall) and len(others) == calls - 1 and all(isinstance(one, ToolCall) for one in others)
