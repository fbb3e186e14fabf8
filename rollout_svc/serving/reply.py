"""Converts the tokens of one reply to deltas as they arrive: the model's reasoning, its text, and its tool calls. Pure.

The grammar of calls is that of `common/tool_calls/`. Text from the start of a call is held back until the call is complete;
a malformed or unfinished call is text. Whitespace around calls is left out, as in `without_calls`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from common.messages import MIN_LOGPROB, Finish, ServedCall, ServedToken, TopToken
from common.tool_calls import DEFAULT_MARKS, MAX_CALLS, MAX_PARSED_CHARS, Schema, ToolCall, find_calls, text_parameter
from common.tool_calls import Reply as CallText
from rollout_svc.engine.stream import TokenLogprobs
from rollout_svc.text.chat import Chat
from rollout_svc.text.reply_text import Detokenizer, StopText, overlap

TAG = ("<tool_call>", "</tool_call>")


@dataclass(frozen=True)
class AnswerText:
    text: str


@dataclass(frozen=True)
class Reasoning:
    text: str


Part = AnswerText | Reasoning | ToolCall


class Parts:
    """Splits one reply into text, reasoning and tool calls."""

    def __init__(self, tools: Mapping[str, Schema], thoughts: tuple[str, str] | None, *, begins_inside: bool = False) -> None:
        """`thoughts`: the pool's reasoning marks; None: reasoning stays in the text. `begins_inside`: the prompt has the opening mark."""
        self._tools = tools
        self._shows_marks = thoughts is None
        self._opening, self._closing = thoughts or DEFAULT_MARKS
        names = [name for name, schema in tools.items() if text_parameter(schema) is not None]
        self._tags = {TAG[0]: TAG[1], **{f"<{name}>": f"</{name}>" for name in names}} if tools else {}
        """Opening tag of a call → its closing tag."""
        self._watches = bool(self._tags) or thoughts is not None
        self._inside = begins_inside
        self._is_whole = False
        self._text = ""
        """Text not yet emitted."""
        self._searched = 0
        """Characters of `_text` already searched for the end of a call."""
        self._blanks = ""
        """Whitespace held back, since a call may follow."""
        self._calls = 0
        self._after_call = False

    def feed(self, text: str) -> Iterator[Part]:
        """Add text; yield the parts that no later text can change."""
        if not self._watches:
            if text:
                yield AnswerText(text)
            return
        self._text += text
        while (step := self._step()) is not None:
            yield from step

    def end(self) -> Iterator[Part]:
        """End the reply; yield the parts that were held back."""
        self._is_whole = True
        yield from self.feed("")
        rest, self._text = self._text, ""
        if self._inside and not self._shows_marks:
            yield from _thought(rest)
        else:
            yield from self._said(rest)
        if self._blanks and not self._calls:
            yield AnswerText(self._blanks)

    def _step(self) -> list[Part] | None:
        """Parts of the next parsing step; None if it needs more text."""
        if self._inside:
            return self._think()
        marks = [self._opening, *(self._tags if self._calls < MAX_CALLS else ())]
        found = min(((place, mark) for mark in marks if (place := self._text.find(mark)) >= 0), default=None)
        if found is None:
            kept = max(overlap(self._text, mark) for mark in marks)
            return self._give(len(self._text) - kept)
        place, mark = found
        if place:
            return self._give(place)
        return self._open() if mark == self._opening else self._call(mark)

    def _give(self, size: int) -> list[Part] | None:
        if not size:
            return None
        given, self._text, self._searched = self._text[:size], self._text[size:], 0
        return list(self._said(given))

    def _open(self) -> list[Part]:
        self._inside = True
        mark, self._text = self._text[: len(self._opening)], self._text[len(self._opening) :]
        return list(self._said(mark)) if self._shows_marks else []

    def _think(self) -> list[Part] | None:
        place = self._text.find(self._closing)
        size = len(self._text) - overlap(self._text, self._closing) if place < 0 else place
        if place >= 0:
            self._inside = False
        elif not size:
            return None
        given, self._text = self._text[:size], self._text[size:]
        if self._shows_marks:
            if place >= 0:
                given, self._text = given + self._closing, self._text.removeprefix(self._closing)
            return list(self._said(given))
        if place >= 0:
            self._text = self._text.removeprefix(self._closing)
        return list(_thought(given))

    def _call(self, mark: str) -> list[Part] | None:
        """Parse the call at the start of the text."""
        closing = self._tags[mark]
        is_new = self._is_whole or self._text.find(closing, max(len(mark), self._searched - len(closing))) >= 0
        end = CallText(self._text).end_of_call(len(mark), closing, is_whole=self._is_whole) if is_new else None
        if (len(self._text) if end is None else end) >= MAX_PARSED_CHARS + len(closing):
            return self._give(len(mark))
        self._searched = 0 if end is not None else len(self._text)
        if end is None:
            return None
        size = end + len(closing)
        written, self._text = self._text[:size], self._text[size:]
        match find_calls(written, self._tools):
            case [ToolCall() as call]:
                self._calls, self._blanks, self._after_call = self._calls + 1, "", True
                return [call]
            case _:
                return list(self._said(written))

    def _said(self, text: str) -> Iterator[Part]:
        """Text parts without the whitespace beside calls; with tools, trailing whitespace waits for what follows."""
        if not self._tags:
            if text:
                yield AnswerText(text)
            return
        if self._after_call:
            text = text.lstrip()
        core = text.rstrip()
        if core:
            given, self._blanks, self._after_call = self._blanks + core, text[len(core) :], False
            yield AnswerText(given)
        else:
            self._blanks += text


def _thought(text: str) -> Iterator[Part]:
    if text:
        yield Reasoning(text)


def schemas_of(tools: Sequence[Mapping[str, object]]) -> dict[str, Schema]:
    """Tool name → schema of its parameters. `tools`: as in `ServeRequest`. Raises: ValueError for any other shape."""
    found: dict[str, Schema] = {}
    for tool in tools:
        match tool:
            case {"function": {"name": str(name), **rest}}:
                parameters = rest.get("parameters") or {}
                if not isinstance(parameters, dict):
                    raise ValueError(f"the parameters of tool {name} are not a JSON schema")
                found[name] = parameters
            case _:
                raise ValueError('a tool is not of the shape {"type": "function", "function": {"name": ..., "parameters": ...}}')
    return found


@dataclass
class Piece:
    """Addition of some tokens to a reply; fields as in `ServedDelta`."""

    ids: list[int] = field(default_factory=list[int])
    text: str = ""
    reasoning: str = ""
    calls: list[ServedCall] = field(default_factory=list[ServedCall])
    tokens: list[ServedToken] = field(default_factory=list[ServedToken])
    finish: Finish | None = None


class Reply:
    """Reads the tokens of one reply in order, across attempts."""

    def __init__(self, request: str, chat: Chat, parts: Parts, stop: Sequence[str], *, parallel_calls: bool = True) -> None:
        self._request = request
        self._chat = chat
        self._parts = parts
        self._text = Detokenizer(chat.decode)
        self._stop = StopText(stop)
        self._parallel_calls = parallel_calls
        self._calls = 0

    def resume(self, ids: Sequence[int]) -> Piece:
        """Read the tokens of earlier attempts; the user has the returned text already. `finish` is set if the reply ends with them."""
        return self.feed(ids, [], None)

    def feed(self, ids: Sequence[int], logprobs: Sequence[TokenLogprobs], ended: str | None) -> Piece:
        """Read new tokens; `finish` of the result is set if the reply ends, perhaps before the last of `ids`.

        `ended`: the engine's finish reason, given with its last token.
        """
        piece = Piece()
        for place, token in enumerate(ids):
            piece.ids.append(token)
            if logprobs:
                piece.tokens.append(self._served(token, logprobs[place]))
            if token in self._chat.stop_ids:
                return self._end(piece, "stop")
            self._add(piece, self._stop.feed(self._text.feed(token)))
            if self._stop.found or (self._calls and not self._parallel_calls):
                return self._end(piece, "stop")
        return self._end(piece, "length") if ended is not None else piece

    def _end(self, piece: Piece, finish: Finish) -> Piece:
        if not self._stop.found:
            self._add(piece, self._stop.feed(self._text.end()))
            if not self._stop.found:
                self._add(piece, self._stop.end())
        for part in self._parts.end():
            self._take(piece, part)
        piece.finish = "tool_calls" if self._calls and (finish == "stop" or self._stop.found) else "stop" if self._stop.found else finish
        return piece

    def _add(self, piece: Piece, text: str) -> None:
        for part in self._parts.feed(text):
            self._take(piece, part)

    def _take(self, piece: Piece, part: Part) -> None:
        if isinstance(part, ToolCall):
            if self._calls and not self._parallel_calls:
                return
            call = ServedCall(
                id=f"call_{self._request}_{self._calls}", name=part.name, arguments=json.dumps(part.arguments, ensure_ascii=False)
            )
            self._calls += 1
            piece.calls.append(call)
        elif self._calls and not self._parallel_calls:
            return
        elif isinstance(part, AnswerText):
            piece.text += part.text
        else:
            piece.reasoning += part.text

    def _served(self, token: int, logprobs: TokenLogprobs) -> ServedToken:
        top = [self._top(one, logprob) for one, logprob in logprobs.top]
        chosen = self._top(token, logprobs.chosen)
        return ServedToken(token=chosen.token, logprob=chosen.logprob, bytes=chosen.bytes, top=top)

    def _top(self, token: int, logprob: float) -> TopToken:
        spelled = self._chat.token_bytes(token)
        return TopToken(token=spelled.decode(errors="replace"), logprob=_finite(logprob), bytes=list(spelled))


def _finite(logprob: float) -> float:
    """`logprob` clipped to MIN_LOGPROB, since JSON has no infinity."""
    return max(logprob, MIN_LOGPROB)
