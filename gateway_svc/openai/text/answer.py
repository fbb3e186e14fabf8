"""Answers of `/v1/completions`; chunks have the shape of whole answers."""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

from common.messages.serving import ServedDelta, ServedToken
from gateway_svc.openai.sampling.counting import Counted, Head, UsageOf, usage_of


class TextLogprobs(BaseModel):
    text_offset: list[int]
    """Characters of the answer's tokens before each."""
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]]


class TextChoice(BaseModel):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    """None in chunks before a choice's last."""


class TextAnswer(BaseModel):
    """Serialized without what is unset: chunks have `usage` only where it was requested."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    system_fingerprint: str | None
    usage: UsageOf | None = None


class TextStream:
    """Chunks of one answer. `choices`: their number."""

    def __init__(self, head: Head, choices: int, *, include_usage: bool) -> None:
        self._head = head
        self._counted = [Counted() for _ in range(choices)]
        self._offsets = [0] * choices
        self._include_usage = include_usage

    def chunks(self, choice: int, delta: ServedDelta) -> list[TextAnswer]:
        """What the choice got; nothing for tokens that gave no text yet."""
        self._counted[choice].add(delta)
        if not delta.text and not delta.tokens and delta.finish is None:
            return []
        shown = _choice(choice, delta.text, delta.tokens, self._offsets[choice], delta)
        self._offsets[choice] += sum(len(token.token) for token in delta.tokens)
        return [_answer(self._head, [shown], self._counted[choice].fingerprint, None, has_usage=self._include_usage)]

    def end(self) -> list[TextAnswer]:
        """The chunk with the usage, if it was requested."""
        if not self._include_usage:
            return []
        return [_answer(self._head, [], self._counted[0].fingerprint, usage_of(self._counted), has_usage=True)]


def text_answer(head: Head, choices: Sequence[Sequence[ServedDelta]]) -> TextAnswer:
    """The whole answer, of all deltas of each choice."""
    counted = [Counted() for _ in choices]
    for one, deltas in zip(counted, choices, strict=True):
        for delta in deltas:
            one.add(delta)
    found = [
        _choice(index, "".join(one.text for one in deltas), [token for one in deltas for token in one.tokens], 0, deltas[-1])
        for index, deltas in enumerate(choices)
    ]
    return _answer(head, found, counted[0].fingerprint, usage_of(counted), has_usage=True)


def _choice(index: int, text: str, tokens: Sequence[ServedToken], offset: int, last: ServedDelta) -> TextChoice:
    finish = None if last.finish is None else "length" if last.finish == "length" else "stop"
    return TextChoice(index=index, text=text, logprobs=_logprobs(tokens, offset) if tokens else None, finish_reason=finish)


def _logprobs(tokens: Sequence[ServedToken], offset: int) -> TextLogprobs:
    offsets: list[int] = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.token)
    return TextLogprobs(
        text_offset=offsets,
        token_logprobs=[token.logprob for token in tokens],
        tokens=[token.token for token in tokens],
        top_logprobs=[{one.token: one.logprob for one in token.top} | {token.token: token.logprob} for token in tokens],
    )


def _answer(head: Head, choices: list[TextChoice], fingerprint: str, usage: UsageOf | None, *, has_usage: bool) -> TextAnswer:
    return TextAnswer(
        id=f"cmpl-{head.request}",
        object="text_completion",
        created=head.created,
        model=head.model,
        choices=choices,
        system_fingerprint=fingerprint or None,
        **({"usage": usage} if has_usage else {}),
    )
