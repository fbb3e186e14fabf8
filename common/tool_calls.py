"""Parser of tool calls in a reply's text, for environments and for serving. Pure.

It reads three notations, for every model:

    <tool_call>{"name": "search", "arguments": {"query": "dams"}}</tool_call>                       Hermes, Qwen 2.5 and 3
    <tool_call><function=search><parameter=query>dams</parameter></function></tool_call>            Qwen 3 Coder and later
    <search>dams</search>                                        a tool that needs one text, for models that are too small

Text inside `<think>…</think>` holds no calls. A malformed call is returned with a complaint that the policy can learn from.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import cast

from pydantic import JsonValue

from common.formats import strict_json

Schema = dict[str, JsonValue]
"""JSON schema of a tool's parameters."""

HOW = 'write <tool_call>{"name": "...", "arguments": {...}}</tool_call>'
FUNCTION = re.compile(r"\s*<function=([^>\s]+)>(.*?)</function>\s*", re.DOTALL)
PARAMETER = re.compile(r"<parameter=([^<>\s]{1,128})>|</parameter>")
"""Start or end tag of a parameter. A pattern of the whole would scan the rest of the text for each one that is not closed."""
MAX_PARSED_CHARS = 256 * 1024
"""Maximum length of a reply's end that is parsed."""
MAX_CALLS = 256
"""Maximum calls parsed in one reply; a task allows fewer."""
MAX_QUOTE_CHARS = 40
"""Maximum length of the policy's text that a complaint quotes."""


@dataclass(frozen=True)
class ToolCall:
    """A tool call that the policy requests."""

    name: str
    arguments: dict[str, JsonValue]


@dataclass(frozen=True)
class MalformedCall:
    """A malformed tool call."""

    complaint: str


def find_calls(text: str, tools: Mapping[str, Schema]) -> list[ToolCall | MalformedCall]:
    """First MAX_CALLS calls in `text`, in their order; linear in its length. `tools`: schemas of all tools of the episode."""
    tags = {name: parameter for name, schema in tools.items() if (parameter := text_parameter(schema)) is not None}
    spoken = without_thoughts(text)[-MAX_PARSED_CHARS:]
    found = islice(_pattern(tuple(tags)).finditer(spoken), MAX_CALLS)
    return [_sayable(_call(one, tools, tags)) for one in found]


def text_parameter(schema: Schema) -> str | None:
    """The parameter that a plain tag fills: the only required or only parameter, where it is a string."""
    properties = cast("dict[str, Schema]", schema.get("properties", {}))
    names = cast("list[str]", schema.get("required", [])) or list(properties)
    if len(names) != 1 or properties.get(names[0], {}).get("type") != "string":
        return None
    return names[0]


def without_thoughts(text: str) -> str:
    """A reply without the text inside `<think>…</think>`."""
    thought, closed, spoken = text.rpartition("</think>")
    kept = spoken if closed else thought + spoken
    return kept.partition("<think>")[0]


def without_calls(text: str, tools: Mapping[str, Schema]) -> str:
    """A reply without its calls."""
    tags = tuple(name for name, schema in tools.items() if text_parameter(schema) is not None)
    return _pattern(tags).sub("", text).strip()


def _pattern(tags: tuple[str, ...]) -> "re.Pattern[str]":
    names = "|".join(map(re.escape, tags))
    plain = rf"|<(?P<tag>{names})>(?P<text>.*?)(?P<tag_end></(?P=tag)>|\Z)" if tags else ""
    return re.compile(rf"<tool_call>(?P<body>.*?)(?P<end></tool_call>|\Z){plain}", re.DOTALL)


def _call(found: "re.Match[str]", tools: Mapping[str, Schema], tags: Mapping[str, str]) -> ToolCall | MalformedCall:
    parts = found.groupdict()
    tag = parts.get("tag")
    if tag is not None:
        if not parts["tag_end"]:
            return MalformedCall(f"<{tag}> is not closed: write <{tag}>...</{tag}>")
        return ToolCall(tag, {tags[tag]: parts["text"].strip()})
    if not parts["end"]:
        return MalformedCall(f"<tool_call> is not closed: {HOW}")
    body = parts["body"]
    if function := FUNCTION.fullmatch(body):
        return _from_function(function[1], function[2], tools)
    return _from_json(body)


def _sayable(call: ToolCall | MalformedCall) -> ToolCall | MalformedCall:
    """The call, refused where it holds half a surrogate pair: JSON can escape one, and sending it ends a shared connection."""
    if isinstance(call, MalformedCall):
        return call
    try:
        json.dumps([call.name, call.arguments], ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return MalformedCall(f"the tool call {_quoted(call.name)} holds text that is not Unicode (half a surrogate pair): {HOW}")
    return call


def _from_json(body: str) -> ToolCall | MalformedCall:
    try:
        call = strict_json.read(body)
    except (ValueError, RecursionError) as error:
        detail = "too deep" if isinstance(error, RecursionError) else getattr(error, "msg", str(error))
        return MalformedCall(f"the tool call {_quoted(body)} is not JSON ({detail}): {HOW}")
    if not isinstance(call, dict) or not isinstance(name := call.get("name"), str):
        return MalformedCall(f"the tool call {_quoted(body)} has no name: {HOW}")
    arguments = call.get("arguments", {})
    if isinstance(arguments, str):  # as OpenAI's messages have them
        try:
            arguments = strict_json.read(arguments)
        except (ValueError, RecursionError):
            pass
    if not isinstance(arguments, dict):
        return MalformedCall(f"the arguments of the tool call {_quoted(body)} are not an object: {HOW}")
    return ToolCall(name, arguments)


def _from_function(name: str, body: str, tools: Mapping[str, Schema]) -> ToolCall:
    properties = cast("dict[str, Schema]", tools.get(name, {}).get("properties", {}))
    return ToolCall(name, {key: _value(value, properties.get(key, {})) for key, value in _parameters(body)})


def _parameters(body: str) -> Iterator[tuple[str, str]]:
    """Name and text of each closed parameter; tags inside a parameter are its text."""
    opened: re.Match[str] | None = None
    for end in PARAMETER.finditer(body):
        if opened is None:
            opened = end if end[1] else None
        elif not end[1]:
            yield opened[1], body[opened.end() : end.start()].removeprefix("\n").removesuffix("\n")
            opened = None


def _value(text: str, schema: Schema) -> JsonValue:
    if schema.get("type", "string") == "string":
        return text
    try:
        return strict_json.read(text)
    except (ValueError, RecursionError):
        return text


def _quoted(text: str) -> str:
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= MAX_QUOTE_CHARS else flat[: MAX_QUOTE_CHARS - 3] + "...")
