"""Answers of `/v1/responses`: typed events from deltas; the whole answer is taken from the last event."""

from collections.abc import Callable, Sequence
from typing import Literal

from common.messages.serving import ServedCall, ServedDelta, ServedToken
from gateway_svc.openai.chat.answer import TopLogprob
from gateway_svc.openai.responses.request import ResponseRequest
from gateway_svc.openai.responses.shapes import (
    ArgumentsDeltaEvent,
    ArgumentsDoneEvent,
    Event,
    FunctionCallItem,
    FunctionTool,
    Incomplete,
    InputDetails,
    ItemEvent,
    ItemStatus,
    MessageItem,
    OutputItem,
    OutputText,
    PartEvent,
    PartLogprob,
    ReasoningDeltaEvent,
    ReasoningDoneEvent,
    ReasoningItem,
    ReasoningText,
    ResponseError,
    ResponseEvent,
    ResponseOf,
    ResponseUsage,
    TextDeltaEvent,
    TextDoneEvent,
)
from gateway_svc.openai.sampling.counting import Counted, Head

Kind = Literal["message", "reasoning"]


class ResponseStream:
    """Builds the events of one response."""

    def __init__(self, head: Head, request: ResponseRequest, *, clock: Callable[[], float]) -> None:
        self._head = head
        self._request = request
        self._clock = clock
        self._counted = Counted()
        self._number = 0
        self._done: list[OutputItem] = []
        self._open: Kind | None = None
        self._texts: list[str] = []
        self._logprobs: list[PartLogprob] = []

    def begin(self) -> list[Event]:
        """Events before the first delta."""
        return [
            ResponseEvent(type=kind, sequence_number=self._next(), response=self._response("in_progress"))
            for kind in ("response.created", "response.in_progress")
        ]

    def events(self, delta: ServedDelta) -> list[Event]:
        """Events for a delta; for the last delta also those that end the response."""
        self._counted.add(delta)
        found: list[Event] = []
        if delta.reasoning:
            found += [*self._opened("reasoning"), self._reasoned(delta.reasoning)]
        if delta.text or (delta.tokens and not delta.reasoning and not delta.calls):
            found += [*self._opened("message"), self._wrote(delta.text, delta.tokens)]
        for call in delta.calls:
            found += [*self._closed("completed"), *self._called(call)]
        if delta.finish is not None:
            found += self._ended(is_cut=delta.finish == "length")
        return found

    def failed(self, code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"], message: str) -> Event:
        """Event that ends a response whose sampling failed."""
        self._closed("incomplete")
        response = self._response("failed").model_copy(update={"error": ResponseError(code=code, message=message)})
        return ResponseEvent(type="response.failed", sequence_number=self._next(), response=response)

    def _ended(self, *, is_cut: bool) -> list[Event]:
        found = self._opened("message") if not self._done and self._open is None else []
        found += self._closed("incomplete" if is_cut else "completed")
        response = self._response("incomplete" if is_cut else "completed")
        kind = "response.incomplete" if is_cut else "response.completed"
        return [*found, ResponseEvent(type=kind, sequence_number=self._next(), response=response)]

    def _opened(self, kind: Kind) -> list[Event]:
        """Events that begin an item of this kind, unless one is already open."""
        if self._open == kind:
            return []
        found = self._closed("completed")
        self._open, self._texts, self._logprobs = kind, [], []
        item = self._item("in_progress", has_part=False)
        found.append(ItemEvent(type="response.output_item.added", sequence_number=self._next(), output_index=self._index, item=item))
        part = self._part()
        found.append(
            PartEvent(
                type="response.content_part.added",
                sequence_number=self._next(),
                output_index=self._index,
                item_id=self._item_id,
                part=part,
            )
        )
        return found

    def _closed(self, status: ItemStatus) -> list[Event]:
        """Events that end the open item; empty if there is none."""
        if self._open is None:
            return []
        index, item_id, text, part = self._index, self._item_id, "".join(self._texts), self._part()
        item = self._item(status, has_part=True)
        done: Event
        if self._open == "message":
            done = TextDoneEvent(sequence_number=self._next(), output_index=index, item_id=item_id, text=text, logprobs=[*self._logprobs])
        else:
            done = ReasoningDoneEvent(sequence_number=self._next(), output_index=index, item_id=item_id, text=text)
        self._open = None
        self._done.append(item)
        return [
            done,
            PartEvent(type="response.content_part.done", sequence_number=self._next(), output_index=index, item_id=item_id, part=part),
            ItemEvent(type="response.output_item.done", sequence_number=self._next(), output_index=index, item=item),
        ]

    def _wrote(self, text: str, tokens: Sequence[ServedToken]) -> Event:
        logprobs = [_logprob(token) for token in tokens]
        self._texts.append(text)
        self._logprobs += logprobs
        return TextDeltaEvent(sequence_number=self._next(), output_index=self._index, item_id=self._item_id, delta=text, logprobs=logprobs)

    def _reasoned(self, text: str) -> Event:
        self._texts.append(text)
        return ReasoningDeltaEvent(sequence_number=self._next(), output_index=self._index, item_id=self._item_id, delta=text)

    def _called(self, call: ServedCall) -> list[Event]:
        """Events of a whole item, as calls arrive complete."""
        index, item_id = self._index, f"fc_{self._head.request}{self._index}"
        item = FunctionCallItem(id=item_id, call_id=call.id, name=call.name, arguments=call.arguments, status="completed")
        begun = item.model_copy(update={"arguments": "", "status": "in_progress"})
        self._done.append(item)
        return [
            ItemEvent(type="response.output_item.added", sequence_number=self._next(), output_index=index, item=begun),
            ArgumentsDeltaEvent(sequence_number=self._next(), output_index=index, item_id=item_id, delta=call.arguments),
            ArgumentsDoneEvent(sequence_number=self._next(), output_index=index, item_id=item_id, name=call.name, arguments=call.arguments),
            ItemEvent(type="response.output_item.done", sequence_number=self._next(), output_index=index, item=item),
        ]

    def _item(self, status: ItemStatus, *, has_part: bool) -> MessageItem | ReasoningItem:
        part = self._part()
        if isinstance(part, OutputText):
            return MessageItem(id=self._item_id, status=status, content=[part] if has_part else [])
        return ReasoningItem(id=self._item_id, status=status, content=[part] if has_part else [])

    def _part(self) -> OutputText | ReasoningText:
        text = "".join(self._texts)
        return OutputText(text=text, logprobs=[*self._logprobs]) if self._open == "message" else ReasoningText(text=text)

    @property
    def _index(self) -> int:
        """Index of the open item, or of the next one."""
        return len(self._done)

    @property
    def _item_id(self) -> str:
        return f"{'msg' if self._open == 'message' else 'rs'}_{self._head.request}{self._index}"

    def _next(self) -> int:
        self._number += 1
        return self._number - 1

    def _response(self, status: Literal["in_progress", "completed", "incomplete", "failed"]) -> ResponseOf:
        asked = self._request
        return ResponseOf(
            id=f"resp_{self._head.request}",
            created_at=self._head.created,
            completed_at=int(self._clock()) if status == "completed" else None,
            status=status,
            incomplete_details=Incomplete() if status == "incomplete" else None,
            instructions=asked.instructions,
            max_output_tokens=asked.max_output_tokens,
            model=self._head.model,
            output=[*self._done],
            parallel_tool_calls=asked.parallel_tool_calls,
            temperature=asked.temperature,
            tool_choice=asked.tool_choice,
            tools=[FunctionTool(name=one.name, description=one.description, parameters=one.parameters) for one in asked.tools],
            top_p=asked.top_p,
            top_logprobs=asked.top_logprobs or 0,
            usage=None if status == "in_progress" else _usage(self._counted),
            metadata=asked.metadata,
            system_fingerprint=self._counted.fingerprint or None,
        )


def response_answer(stream: ResponseStream, deltas: Sequence[ServedDelta]) -> ResponseOf:
    """Build the whole answer. `stream`: a new one. `deltas`: all, including the last."""
    events = [event for delta in deltas for event in stream.events(delta)]
    last = events[-1]
    assert isinstance(last, ResponseEvent), "the last delta of an answer ends it"
    return last.response


def _usage(counted: Counted) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=counted.prompt or 0,
        input_tokens_details=InputDetails(cached_tokens=counted.cached),
        output_tokens=counted.sampled,
        total_tokens=(counted.prompt or 0) + counted.sampled,
    )


def _logprob(token: ServedToken) -> PartLogprob:
    top = [TopLogprob(token=one.token, logprob=one.logprob, bytes=one.bytes) for one in token.top]
    return PartLogprob(token=token.token, logprob=token.logprob, bytes=token.bytes, top_logprobs=top)
