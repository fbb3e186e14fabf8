"""One reply on its way from tokens to deltas. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from common.messages import MIN_LOGPROB, Finish, ServedCall, ServedToken, TopToken
from common.tool_calls import ToolCall
from rollout_svc.engine.stream import TokenLogprobs
from rollout_svc.serving.reply_parser import AnswerText, Part, Parts
from rollout_svc.serving.text import Detokenizer, StopText
from rollout_svc.text.chat import Chat


@dataclass
class Piece:
    """What some tokens add to a reply; as the fields of `ServedDelta`."""

    ids: list[int] = field(default_factory=list[int])
    text: str = ""
    reasoning: str = ""
    calls: list[ServedCall] = field(default_factory=list[ServedCall])
    tokens: list[ServedToken] = field(default_factory=list[ServedToken])
    finish: Finish | None = None


class Reply:
    """The tokens of one reply in order, across attempts."""

    def __init__(self, request: str, chat: Chat, parts: Parts, stop: Sequence[str], *, parallel_calls: bool = True) -> None:
        self._request = request
        self._chat = chat
        self._parts = parts
        self._text = Detokenizer(chat.decode)
        self._stop = StopText(stop)
        self._parallel_calls = parallel_calls
        self._calls = 0

    def resume(self, ids: Sequence[int]) -> Piece:
        """Tokens of earlier attempts. Its `finish` is set where they were all that there is; else the user has what they give."""
        return self.feed(ids, [], None)

    def feed(self, ids: Sequence[int], logprobs: Sequence[TokenLogprobs], ended: str | None) -> Piece:
        """`ended`: the engine's reason with its last token. `finish` is set where the reply ends, perhaps before the last of `ids`."""
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
    """JSON has no infinity."""
    return max(logprob, MIN_LOGPROB)
