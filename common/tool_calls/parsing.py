"""Parser of tool calls in a reply's text. Pure.

It reads three notations, for every model:

    <tool_call>{"name": "search", "arguments": {"query": "dams"}}</tool_call>                       Hermes, Qwen 2.5 and 3
    <tool_call><function=search><parameter=query>dams</parameter></function></tool_call>            Qwen 3 Coder and later
    <search>dams</search>                                        a tool that needs one text, for models that are too small

A tag inside a text of a call is part of that text, except where it ends a parameter or a call as these notations do. Text inside
`<think>…</think>` holds no calls; some templates open thoughts themselves, so that a reply begins inside. A malformed call is returned
with a complaint that the policy can learn from.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pydantic import JsonValue

from common.formats import strict_json
from common.tool_calls.ends import PARAMETER, PARAMETER_END, Reply
from common.tool_calls.schemas import Schema, text_parameter, values_of

HOW = 'write <tool_call>{"name": "...", "arguments": {...}}</tool_call>'
DEFAULT_MARKS = ("<think>", "</think>")
"""Marks of thoughts, where a pool names none."""
TOOL_CALL = "<tool_call>"
FUNCTION = re.compile(r"\s*<function=([^>\s]+)>(.*?)</function>\s*", re.DOTALL)
ANY_END = re.compile("</parameter>")
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


@dataclass(frozen=True)
class _Written:
    """A call as a reply has it."""

    tag: str
    body: str
    place: tuple[int, int]
    """Where it begins and ends, tags included."""
    is_closed: bool


@dataclass(frozen=True)
class Thoughts:
    """Where a reply holds thoughts, in which there are no calls."""

    opening: str = DEFAULT_MARKS[0]
    closing: str = DEFAULT_MARKS[1]
    begins_inside: bool = False
    """True: the prompt has opened them."""

    @classmethod
    def after(cls, prompt: str, marks: tuple[str, str] | None = None) -> "Thoughts":
        """Those of a reply to `prompt`, or to its last tokens. `marks`: of the pool."""
        opening, closing = marks or DEFAULT_MARKS
        return cls(opening, closing, prompt.rstrip().endswith(opening))


UNOPENED = Thoughts()


def find_calls(text: str, tools: Mapping[str, Schema], thoughts: Thoughts = UNOPENED) -> list[ToolCall | MalformedCall]:
    """First MAX_CALLS calls in `text`, in their order; linear in its length. `tools`: schemas of all tools of the episode."""
    tags = _tags(tools)
    if len(text) > MAX_PARSED_CHARS:
        text, thoughts = without_thoughts(text, thoughts)[-MAX_PARSED_CHARS:], replace(thoughts, begins_inside=False)
    return [_sayable(_call(one, tools, tags)) for one in _written(text, tags, thoughts)]


def without_thoughts(text: str, thoughts: Thoughts = UNOPENED) -> str:
    """A reply without its thoughts."""
    thought, closed, spoken = text.rpartition(thoughts.closing)
    kept = spoken if closed else "" if thoughts.begins_inside else thought + spoken
    return kept.partition(thoughts.opening)[0]


def without_calls(text: str, tools: Mapping[str, Schema]) -> str:
    """A reply without its calls."""
    kept, end = list[str](), 0
    for one in _calls(text, _tags(tools), (), 0):
        kept.append(text[end : one.place[0]])
        end = one.place[1]
    return "".join([*kept, text[end:]]).strip()


def _tags(tools: Mapping[str, Schema]) -> dict[str, str]:
    """Tools that have a plain tag, with the parameter that it fills."""
    return {name: parameter for name, schema in tools.items() if (parameter := text_parameter(schema)) is not None}


def _written(text: str, tags: Mapping[str, str], thoughts: Thoughts) -> list[_Written]:
    """The first calls of a reply: none of those inside thoughts, or before the end of thoughts that it did not open itself."""
    found, at, is_inside, last_end = list[_Written](), 0, thoughts.begins_inside, text.rfind(thoughts.closing)
    while True:
        if is_inside:
            at, is_inside = text.find(thoughts.closing, at), False
            if at < 0:
                return found
        for one in _calls(text, tags, (thoughts.opening, thoughts.closing), at):
            at = one.place[1]
            if one.tag == thoughts.opening:
                is_inside = True
                break
            if one.tag == thoughts.closing:
                found.clear()
            elif len(found) < MAX_CALLS:
                found.append(one)
            elif at > last_end:
                break
        if not is_inside:
            return found


def _calls(text: str, tags: Mapping[str, str], marks: tuple[str, ...], at: int) -> Iterator[_Written]:
    """Calls from `at` on, and marks outside of them."""
    reply, pattern = Reply(text), re.compile("|".join(map(re.escape, [*marks, TOOL_CALL, *(f"<{tag}>" for tag in tags)])))
    while opened := pattern.search(text, at):
        begin, at = opened.span()
        closing, end = f"</{opened[0][1:]}", at
        if opened[0] not in marks:
            found = reply.end_of_call(at, closing, is_whole=True)
            end, at = (len(text), len(text)) if found is None else (found, found + len(closing))
        yield _Written(opened[0], text[opened.end() : end], (begin, at), is_closed=at > end)


def _call(written: _Written, tools: Mapping[str, Schema], tags: Mapping[str, str]) -> ToolCall | MalformedCall:
    name = written.tag[1:-1]
    if written.tag != TOOL_CALL:
        return (
            ToolCall(name, {tags[name]: written.body.strip()})
            if written.is_closed
            else MalformedCall(f"<{name}> is not closed: write <{name}>...</{name}>")
        )
    if not written.is_closed:
        return MalformedCall(f"<tool_call> is not closed: {HOW}")
    if function := FUNCTION.fullmatch(written.body):
        return ToolCall(function[1], values_of(dict(_parameters(f"{function[2]}</function>")), tools.get(function[1], {})))
    return _from_json(written.body)


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


def _parameters(body: str) -> Iterator[tuple[str, str]]:
    """Name and text of each closed parameter; tags inside a parameter are its text."""
    at = 0
    while opened := PARAMETER.search(body, at):
        end = PARAMETER_END.search(body, opened.end()) or ANY_END.search(body, opened.end())
        if end is None:
            return
        yield opened[1], body[opened.end() : end.start()].removeprefix("\n").removesuffix("\n")
        at = end.end()


def _quoted(text: str) -> str:
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= MAX_QUOTE_CHARS else flat[: MAX_QUOTE_CHARS - 3] + "...")
