"""Answers from deltas: chunks put together are the whole answer, and both are what the client's own types describe."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from common.messages.serving import Finish, ServedDelta
from gateway_svc.openai.chat.answer import ChatStream, chat_answer
from gateway_svc.openai.parsing import parse_request
from gateway_svc.openai.responses.answer import ResponseStream, response_answer
from gateway_svc.openai.responses.request import ResponseRequest
from gateway_svc.openai.sampling.counting import Head
from gateway_svc.openai.text import TextStream, text_answer
from tests.support.gateway.deltas import FINGERPRINT, Part, call, deltas

HEAD = Head("0" * 24, 1_790_000_000, "sums-1@7")
EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
parts = st.lists(
    st.builds(Part, texts, texts, st.lists(st.builds(call, st.integers(0, 9)), max_size=2), st.integers(0, 3)), min_size=1, max_size=6
)
finishes: st.SearchStrategy[Finish] = st.sampled_from(["stop", "length", "tool_calls"])
replies = st.builds(
    lambda parts, finish, logprobs: deltas(parts, finish, logprobs=logprobs), parts, finishes, st.none() | st.integers(0, 3)
)


def chunks_of(choices: list[list[ServedDelta]], *, include_usage: bool = True) -> list[dict[str, Any]]:
    """As they are sent, the choices' deltas in turn."""
    stream = ChatStream(HEAD, len(choices), include_usage=include_usage)
    found = []
    for number in range(max(map(len, choices))):
        for choice, of in enumerate(choices):
            found += stream.chunks(choice, of[number]) if number < len(of) else []
    return [json.loads(one.model_dump_json(exclude_unset=True)) for one in [*found, *stream.end()]]


@given(st.lists(replies, min_size=1, max_size=3))
def test_chat_chunks_put_together_are_the_whole_answer(choices: list[list[ServedDelta]]) -> None:
    answer = json.loads(chat_answer(HEAD, choices, logprobs=True, metadata={"a": "b"}).model_dump_json())
    chunks = chunks_of(choices)
    ChatCompletion.model_validate_json(json.dumps(answer), strict=True)
    for chunk in chunks:
        ChatCompletionChunk.model_validate_json(json.dumps(chunk), strict=True)
    for index, whole in enumerate(answer["choices"]):
        of = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert of[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(one["delta"].get("content", "") for one in of) == (whole["message"]["content"] or "")
        assert "".join(one["delta"].get("reasoning_content", "") for one in of) == (whole["message"]["reasoning_content"] or "")
        calls = [tool for one in of for tool in one["delta"].get("tool_calls", [])]
        assert [{name: value for name, value in tool.items() if name != "index"} for tool in calls] == (
            whole["message"]["tool_calls"] or []
        )
        assert [tool["index"] for tool in calls] == list(range(len(calls)))
        assert [one["finish_reason"] for one in of] == [None] * (len(of) - 1) + [whole["finish_reason"]]
        streamed = [entry for one in of if one["logprobs"] for entry in one["logprobs"]["content"]]
        assert streamed == whole["logprobs"]["content"]
    assert [chunk["usage"] for chunk in chunks] == [None] * (len(chunks) - 1) + [answer["usage"]]
    assert chunks[-1]["choices"] == []


@given(st.lists(replies, min_size=1, max_size=3))
def test_usage_counts_the_tokens_of_every_choice(choices: list[list[ServedDelta]]) -> None:
    usage = chat_answer(HEAD, choices, logprobs=False, metadata={}).usage

    sampled = sum(len(delta.ids) // 4 for deltas in choices for delta in deltas)
    assert (usage.prompt_tokens, usage.completion_tokens) == (7 * len(choices), sampled)
    assert (usage.total_tokens, usage.prompt_tokens_details.cached_tokens) == (7 * len(choices) + sampled, 4 * len(choices))


def test_usage_is_not_in_chunks_that_did_not_ask_for_it() -> None:
    chunks = chunks_of([deltas([Part("a")])], include_usage=False)

    assert all("usage" not in chunk for chunk in chunks)
    assert all(chunk["choices"] for chunk in chunks)


@pytest.mark.parametrize("finish", ["stop", "tool_calls"])
def test_a_reply_that_ends_with_a_call_has_one_reason_streamed_and_not(finish: Finish) -> None:
    reply = deltas([Part("Let me add."), Part(calls=[call(1)])], finish)

    whole = chat_answer(HEAD, [reply], logprobs=False, metadata={}).choices[0]
    last = chunks_of([reply], include_usage=False)[-1]["choices"][0]

    assert whole.finish_reason == last["finish_reason"] == "tool_calls"
    assert whole.message.content == "Let me add."


def test_a_second_attempt_counts_the_prompt_once() -> None:
    first, second = deltas([Part("a"), Part("b")])[:2], deltas([Part("c")], prompt=9)

    assert chat_answer(HEAD, [[*first, *second]], logprobs=False, metadata={}).usage.prompt_tokens == 7


@given(st.lists(replies, min_size=1, max_size=3))
def test_text_chunks_put_together_are_the_whole_text(choices: list[list[ServedDelta]]) -> None:
    answer = text_answer(HEAD, choices)
    stream = TextStream(HEAD, len(choices), include_usage=True)
    chunks = [chunk for choice, of in enumerate(choices) for delta in of for chunk in stream.chunks(choice, delta)] + stream.end()

    for one in (answer, *chunks[:-1]):
        shown = json.loads(one.model_dump_json(exclude_unset=True))
        for choice in shown["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"  # the client's type has no chunk before the last
        Completion.model_validate_json(json.dumps(shown), strict=True)
    for index, whole in enumerate(answer.choices):
        of = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert "".join(one.text for one in of) == whole.text
        assert of[-1].finish_reason == whole.finish_reason
        offsets = [offset for one in of if one.logprobs for offset in one.logprobs.text_offset]
        assert offsets == (whole.logprobs.text_offset if whole.logprobs else [])
    assert [chunk.usage for chunk in chunks] == [None] * (len(chunks) - 1) + [answer.usage]


@given(replies)
def test_events_of_a_response_end_with_the_whole_answer(reply: list[ServedDelta]) -> None:
    request = parse_request(ResponseRequest, {"model": "sums-1@7", "input": "2 + 2", "instructions": "Add."})
    stream = ResponseStream(HEAD, request, clock=lambda: 1_790_000_001.0)
    events = [json.loads(one.model_dump_json()) for one in [*stream.begin(), *(one for delta in reply for one in stream.events(delta))]]
    whole = json.loads(response_answer(ResponseStream(HEAD, request, clock=lambda: 1_790_000_001.0), reply).model_dump_json())

    for event in events:
        EVENT.validate_json(json.dumps(event), strict=True)
    Response.model_validate_json(json.dumps(whole), strict=True)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["response"] == whole
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == whole["output"]
    written = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert written == "".join(delta.text for delta in reply)
    assert written == "".join(part["text"] for item in done if item["type"] == "message" for part in item["content"])
    assert [item["call_id"] for item in done if item["type"] == "function_call"] == [one.id for delta in reply for one in delta.calls]
    assert whole["status"] == ("incomplete" if reply[-1].finish == "length" else "completed")
    assert whole["usage"]["output_tokens"] == sum(len(delta.ids) // 4 for delta in reply)
    assert whole["system_fingerprint"] == FINGERPRINT


def test_every_item_of_a_response_is_added_before_it_changes_and_is_done_after() -> None:
    request = parse_request(ResponseRequest, {"model": "tiny", "input": "x"})
    stream = ResponseStream(HEAD, request, clock=lambda: 0.0)
    reply = deltas([Part(reasoning="hm"), Part("a"), Part("b", calls=[call(1)]), Part("c")])

    seen = [(one.type, getattr(one, "output_index", None)) for delta in reply for one in stream.events(delta)]

    assert [index for kind, index in seen if kind == "response.output_item.added"] == [0, 1, 2, 3]
    assert [index for kind, index in seen if kind == "response.output_item.done"] == [0, 1, 2, 3]
    assert [index for _, index in seen if index is not None] == sorted(index for _, index in seen if index is not None)
