"""Answers of `/v1/chat/completions`: chunks from deltas, and the whole answer."""

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel

from common.messages.serving import ServedCall, ServedDelta, ServedToken
from gateway_svc.openai.sampling.counting import Counted, FinishReason, Head, UsageOf, usage_of


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class Logprobs(BaseModel):
    content: list[TokenLogprob]
    refusal: None = None


class CalledFunction(BaseModel):
    name: str
    arguments: str


class ToolCall(BaseModel):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class IndexedCall(ToolCall):
    index: int


class AnswerMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    """The model's reasoning, if the pool configures reasoning marks."""
    tool_calls: list[ToolCall] | None = None


class AnswerChoice(BaseModel):
    index: int
    message: AnswerMessage
    finish_reason: FinishReason
    logprobs: Logprobs | None


class ChatAnswer(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[AnswerChoice]
    usage: UsageOf
    system_fingerprint: str | None
    metadata: dict[str, str] | None = None


class MessageDelta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[IndexedCall] | None = None


class ChunkChoice(BaseModel):
    index: int
    delta: MessageDelta
    finish_reason: FinishReason | None
    logprobs: Logprobs | None


class ChatChunk(BaseModel):
    """Serialized without unset fields: `usage` is present only if requested."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    system_fingerprint: str | None
    usage: UsageOf | None = None


class ChatStream:
    """Builds the chunks of one answer. `choices`: their number."""

    def __init__(self, head: Head, choices: int, *, include_usage: bool) -> None:
        self._head = head
        self._counted = [Counted() for _ in range(choices)]
        self._begun = [False] * choices
        self._calls = [0] * choices
        self._usage: Mapping[str, None] = {"usage": None} if include_usage else {}

    def chunks(self, choice: int, delta: ServedDelta) -> list[ChatChunk]:
        """Chunks for a delta; empty if its tokens gave no text yet."""
        counted = self._counted[choice]
        counted.add(delta)
        found: list[ChatChunk] = []
        if not self._begun[choice]:
            self._begun[choice] = True
            found.append(self._chunk(choice, MessageDelta(role="assistant", content="")))
        if (content := self._content(choice, delta)) is not None:
            found.append(self._chunk(choice, content, logprobs=logprobs_of(delta.tokens) if delta.tokens else None))
        if delta.finish is not None:
            found.append(self._chunk(choice, MessageDelta(), finish=counted.finish_reason))
        return found

    def end(self) -> list[ChatChunk]:
        """The chunk with the usage, if requested."""
        if not self._usage:
            return []
        return [self._of([], usage_of(self._counted), self._counted[0].fingerprint)]

    def _content(self, choice: int, delta: ServedDelta) -> MessageDelta | None:
        parts: dict[str, str | list[IndexedCall]] = {}
        if delta.reasoning:
            parts["reasoning_content"] = delta.reasoning
        if delta.text or (delta.tokens and not delta.reasoning and not delta.calls):
            parts["content"] = delta.text
        if delta.calls:
            begin = self._calls[choice]
            self._calls[choice] += len(delta.calls)
            parts["tool_calls"] = [IndexedCall(index=begin + place, **call_of(call).__dict__) for place, call in enumerate(delta.calls)]
        return MessageDelta.model_validate(parts) if parts else None

    def _chunk(
        self, choice: int, delta: MessageDelta, *, finish: FinishReason | None = None, logprobs: Logprobs | None = None
    ) -> ChatChunk:
        shown = ChunkChoice(index=choice, delta=delta, finish_reason=finish, logprobs=logprobs)
        return self._of([shown], None, self._counted[choice].fingerprint)

    def _of(self, choices: list[ChunkChoice], usage: UsageOf | None, fingerprint: str) -> ChatChunk:
        head = self._head
        return ChatChunk(
            id=f"chatcmpl-{head.request}",
            object="chat.completion.chunk",
            created=head.created,
            model=head.model,
            choices=choices,
            system_fingerprint=fingerprint or None,
            **({"usage": usage} if self._usage else {}),
        )


def chat_answer(head: Head, choices: Sequence[Sequence[ServedDelta]], *, logprobs: bool, metadata: Mapping[str, str]) -> ChatAnswer:
    """Build the whole answer from all deltas of each choice."""
    counted = [Counted.of(deltas) for deltas in choices]
    found = [_answer_choice(index, deltas, counted[index], logprobs=logprobs) for index, deltas in enumerate(choices)]
    return ChatAnswer(
        id=f"chatcmpl-{head.request}",
        created=head.created,
        model=head.model,
        choices=found,
        usage=usage_of(counted),
        system_fingerprint=counted[0].fingerprint or None,
        metadata=dict(metadata) or None,
    )


def _answer_choice(index: int, deltas: Sequence[ServedDelta], counted: Counted, *, logprobs: bool) -> AnswerChoice:
    calls = [call_of(call) for delta in deltas for call in delta.calls]
    text = "".join(delta.text for delta in deltas)
    message = AnswerMessage(
        content=None if calls and not text else text,
        reasoning_content="".join(delta.reasoning for delta in deltas) or None,
        tool_calls=calls or None,
    )
    tokens = [token for delta in deltas for token in delta.tokens]
    assert counted.finish_reason is not None, "the last delta of an answer says how it ended"
    shown = logprobs_of(tokens) if logprobs else None
    return AnswerChoice(index=index, message=message, finish_reason=counted.finish_reason, logprobs=shown)


def call_of(call: ServedCall) -> ToolCall:
    return ToolCall(id=call.id, function=CalledFunction(name=call.name, arguments=call.arguments))


def logprobs_of(tokens: Sequence[ServedToken]) -> Logprobs:
    return Logprobs(content=[_logprob(token) for token in tokens])


def _logprob(token: ServedToken) -> TokenLogprob:
    top = [TopLogprob(token=one.token, logprob=one.logprob, bytes=one.bytes) for one in token.top]
    return TokenLogprob(token=token.token, logprob=token.logprob, bytes=token.bytes, top_logprobs=top)
