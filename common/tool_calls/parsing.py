"""Parser of tool calls, and of their ends, in a reply's text. Pure.

It reads three notations, for every model:

    <tool_call>{"name": "search", "arguments": {"query": "dams"}}</tool_call>                       Hermes, Qwen 2.5 and 3
    <tool_call><function=search><parameter=query>dams</parameter></function></tool_call>            Qwen 3 Coder and later
    <search>dams</search>                                        a tool with one text parameter, for small models

A tag inside an argument is part of the argument's text, unless it ends a parameter or a call by the rules of these notations. Text inside
a model's marks of reasoning, by default `<think>…</think>`, contains no calls. Some templates open the reasoning themselves, so that a
reply starts inside it. A malformed call is returned with a complaint from which the policy can learn.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from pydantic import JsonValue

from common.formats import strict_json
from common.tool_calls.schemas import Schema, text_parameter, values_of

HOW = 'write <tool_call>{"name": "...", "arguments": {...}}</tool_call>'
DEFAULT_MARKS = ("<think>", "</think>")
"""Reasoning markers, if a pool defines none."""
TOOL_CALL = "<tool_call>"
FUNCTION = re.compile(r"\s*<function=([^>\s]+)>(.*?)</function>\s*", re.DOTALL)
ANY_END = re.compile("</parameter>")
MAX_PARSED_CHARS = 256 * 1024
"""Maximum characters that are parsed, at the end of a reply."""
MAX_CALLS = 256
"""Maximum calls parsed in one reply; a task allows fewer."""
MAX_QUOTE_CHARS = 40
"""Maximum characters of the policy's text that a complaint quotes."""


@dataclass(frozen=True)
class ToolCall:
    """A tool call requested by the policy."""

    name: str
    arguments: dict[str, JsonValue]


@dataclass(frozen=True)
class MalformedCall:
    """A malformed tool call."""

    complaint: str


@dataclass(frozen=True)
class _Written:
    """A call as written in a reply."""

    tag: str
    body: str
    place: tuple[int, int]
    """Start and end in the reply, tags included."""
    is_closed: bool


@dataclass(frozen=True)
class Thoughts:
    """Position of reasoning in a reply, which contains no calls."""

    opening: str = DEFAULT_MARKS[0]
    closing: str = DEFAULT_MARKS[1]
    begins_inside: bool = False
    """True: the prompt opened the reasoning."""

    @classmethod
    def after(cls, prompt: str, marks: tuple[str, str] | None = None) -> "Thoughts":
        """Position of reasoning in a reply to `prompt`, or to its last tokens. `marks`: the pool's markers."""
        opening, closing = marks or DEFAULT_MARKS
        return cls(opening, closing, prompt.rstrip().endswith(opening))


UNOPENED = Thoughts()


def find_calls(text: str, tools: Mapping[str, Schema], thoughts: Thoughts = UNOPENED) -> list[ToolCall | MalformedCall]:
    """First MAX_CALLS calls in `text`, in order; linear in its length. `tools`: schemas of all tools of the episode."""
    tags = _tags(tools)
    if len(text) > MAX_PARSED_CHARS:
        text, thoughts = without_thoughts(text, thoughts)[-MAX_PARSED_CHARS:], replace(thoughts, begins_inside=False)
    return [_sayable(_call(one, tools, tags)) for one in _written(text, tags, thoughts)]


def without_thoughts(text: str, thoughts: Thoughts = UNOPENED) -> str:
    """A reply without its reasoning."""
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
    """Tools with a plain tag → the parameter that the tag fills."""
    return {name: parameter for name, schema in tools.items() if (parameter := text_parameter(schema)) is not None}


def _written(text: str, tags: Mapping[str, str], thoughts: Thoughts) -> list[_Written]:
    """The first calls of a reply, without those inside reasoning. All text before a closing marker without an opening one is reasoning."""
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
    """Calls from position `at` on, and reasoning markers outside of calls, in order."""
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
    """The call, or a refusal if it contains half a surrogate pair, which JSON can escape: sending it would end a shared connection."""
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
    if isinstance(arguments, str):  # the format of OpenAI's messages
        try:
            arguments = strict_json.read(arguments)
        except (ValueError, RecursionError):
            pass
    if not isinstance(arguments, dict):
        return MalformedCall(f"the arguments of the tool call {_quoted(body)} are not an object: {HOW}")
    return ToolCall(name, arguments)


def _parameters(body: str) -> Iterator[tuple[str, str]]:
    """Name and text of each closed parameter; tags inside a parameter are part of its text."""
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


TOOL_CALL_END = "</tool_call>"
FUNCTION_START = re.compile(r"\s*<function=[^>\s]+>")
FUNCTION_END = re.compile(r"\s*</function>\s*")
PARAMETER = re.compile(r"\s*<parameter=([^<>\s]{1,128})>")
PARAMETER_END = re.compile(r"</parameter>(?=\s*(?:<parameter=[^<>\s]{1,128}>|</function>))")
"""End tag of a parameter, followed by its function's end or another parameter; any other end tag is text."""
BLANKS = re.compile(r"\s*")
JSON = json.JSONDecoder()
LONGEST_TAG = 200
TOKEN_CHARS = 16
"""Characters at a text's end within which a JSON error may be caused by truncation: no literal or escape sequence is longer."""


class Reply:
    """One reply, or the beginning of one. All calls of its methods together take time linear in its length."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._after_parameter: dict[int, int | None] = {}
        """End of a function, by the start of one of its parameters."""

    def end_of_call(self, start: int, closing: str, *, is_whole: bool) -> int | None:
        """Position of a call's closing tag, given the end of its opening tag, `start`; None if it is not in this text.

        For a call that is malformed, or has no end outside of its texts, the first closing tag. `is_whole`: no more text will come.
        """
        first = self._text.find(closing, start)
        if first < 0:
            return None
        if closing != TOOL_CALL_END:
            return first
        function = FUNCTION_START.match(self._text, start)
        end = self._end_of_json(start, first) if function is None else self._end_of_function(function.end())
        if end is not None and self._text.startswith(closing, end):
            return end
        is_cut = end is None or closing.startswith(self._text[end : end + len(closing)])
        return None if is_cut and not is_whole else first

    def _end_of_json(self, start: int, first: int) -> int | None:
        """End of a JSON value and of the whitespace after it; None if the text is too short to tell. `first`: position of the first closing
        tag, which is returned for invalid JSON."""
        size = first - start
        while True:
            part = self._text[start : start + size]  # the decoder counts lines from the start of its input
            is_all = start + size >= len(self._text)
            try:
                return _after_blanks(self._text, start + JSON.raw_decode(part, _after_blanks(part, 0))[1])
            except json.JSONDecodeError as error:
                if not error.msg.startswith("Unterminated string") and error.pos < len(part) - TOKEN_CHARS:
                    return first
            except (ValueError, RecursionError):
                return first
            if is_all:
                return None
            size *= 2

    def _end_of_function(self, start: int) -> int | None:
        """End of a function and of the whitespace after it, or the position where it is malformed; None if the text is too short to
        tell."""
        at, passed = start, list[int]()
        while at not in self._after_parameter:
            passed.append(at)
            parameter = PARAMETER.match(self._text, at)
            end = self._end_of_parameter(parameter.end()) if parameter else None
            if end is None:
                ended = FUNCTION_END.match(self._text, at)
                self._after_parameter[at] = ended.end() if ended else None if parameter or self._is_cut(at) else at
            else:
                at = end
        self._after_parameter.update(dict.fromkeys(passed, self._after_parameter[at]))
        return self._after_parameter[at]

    def _is_cut(self, at: int) -> bool:
        """Whether the text ends inside the tag at `at`."""
        rest = self._text[at : at + LONGEST_TAG].strip()
        return "</function>".startswith(rest) or ("<parameter=".startswith(rest[:11]) and ">" not in rest)

    def _end_of_parameter(self, start: int) -> int | None:
        found = None if start > self._last_end else PARAMETER_END.search(self._text, start)
        return found.end() if found else None

    @cached_property
    def _last_end(self) -> int:
        """Position of the last parameter's end tag; -1 if there is none."""
        return max((found.start() for found in PARAMETER_END.finditer(self._text)), default=-1)


def _after_blanks(text: str, at: int) -> int:
    blanks = BLANKS.match(text, at)
    return blanks.end() if blanks else at
