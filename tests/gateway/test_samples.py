"""Samples by HTTP, with texts of tokens from a replica that serves, and without."""

from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import streams
from common.bus import Bus, Outgoing
from common.messages import Opening, SamplesAnswer, TextsRequest, TokenTexts
from gateway_svc.samples import messages_of, samples_of, tokens_of
from gateway_svc.serving import texts as client_of_texts
from rollout_svc.serving.service import texts_of
from rollout_svc.text.chat import Chat
from tests.gateway.conversations import HOSTILE, conversation
from tests.support.samples import MODEL, keep, kept_attempt, step_samples, texts_replica
from tests.support.scheduler.stages import World, spec
from tests.support.waiting import eventually, eventually_equals


async def test_tokens_have_texts_roles_and_both_log_probabilities(door: httpx.AsyncClient, world: World) -> None:
    await world.run("a")
    async with texts_replica(world.bus) as chat:
        ids, sampled = await conversation(chat)
        await keep(world.bus, step_samples("a", 2, [kept_attempt(ids, sampled, turns=2), kept_attempt(member=1, reward=0.0)]))
        await eventually(lambda: _has_texts(door), 60)
        found = (await door.get("/v1/tasks/a/samples")).json()

    assert (found["step"], found["steps"], found["left_out"]) == (2, [2], 0)
    first, second = found["data"]
    assert [message["role"] for message in first["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert HOSTILE in first["messages"][1]["text"] and "é🙂" in first["messages"][1]["text"]
    assert HOSTILE in first["messages"][3]["text"]
    assert first["messages"][2]["calls"] == [{"name": "search", "arguments": {"query": "dams"}, "complaint": ""}]
    assert "There are two." in first["messages"][4]["text"]
    tokens = first["tokens"]
    assert tokens["ids"] == ids and tokens["sampled"] == [bool(one) for one in sampled]
    assert b"".join(map(in_bytes, tokens["texts"])).decode() == "".join(message["text"] for message in first["messages"])
    numbers = [one for one in tokens["sampler_logprobs"] if one is not None]
    assert numbers[:2] == [-0.5, -1.0] and len(numbers) == sum(sampled)
    assert [a - b for a, b in zip(numbers, filter(None, tokens["trainer_logprobs"]), strict=True)] == [0.125] * len(numbers)
    assert (second["reward"], second["member"], second["advantage"], second["components"]) == (0.0, 1, 0.75, {"correct": 1.0})


def in_bytes(text: str) -> bytes:
    """An escaped byte is one byte."""
    return bytes([int(text[2:], 16)]) if len(text) == 4 and text.startswith("\\x") else text.encode()


async def _has_texts(door: httpx.AsyncClient) -> bool:
    return (await door.get("/v1/tasks/a/samples")).json()["data"][0]["tokens"]["texts"] is not None


async def test_ids_are_given_where_no_replica_serves(door: httpx.AsyncClient, world: World) -> None:
    await world.run("a")
    empty = (await door.get("/v1/tasks/a/samples")).json()
    await keep(world.bus, step_samples("a", 1))
    found = (await door.get("/v1/tasks/a/samples", params={"step": 1})).json()
    absent, foreign = await door.get("/v1/tasks/a/samples?step=2"), await door.get("/v1/tasks/other/samples")
    wrong = [await door.get(f"/v1/tasks/a/samples?step={step}") for step in ("0", "x", "2147483648", "1&more=1")]

    assert (empty["step"], empty["data"]) == (None, [])
    tokens = found["data"][0]["tokens"]
    assert (tokens["ids"], tokens["texts"]) == ([5, 6, 7, 8], None)
    assert [(message["role"], message["count"]) for message in found["data"][0]["messages"]] == [("prompt", 2), ("assistant", 2)]
    assert [answer.status_code for answer in (absent, foreign)] == [404, 404]
    assert absent.json()["detail"] == "task a has no samples of step 2; steps with some: 1"
    assert (found["tenant"], found["pool"], empty["pool"]) == ("acme", "tiny", None)
    assert [answer.status_code for answer in wrong[:3]] == [400, 400, 400]


async def test_replica_that_is_silent_or_wrong_costs_a_moment_and_the_texts(
    door: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_of_texts, "WAIT_S", 0.5)
    await world.run("a")
    await keep(world.bus, step_samples("a", 1, [kept_attempt(ids=[5, 6, 10**6, 8])]))
    async with texts_replica(world.bus):
        found = (await door.get("/v1/tasks/a/samples")).json()
    assert found["data"][0]["tokens"]["ids"][2] == 10**6
    assert found["data"][0]["tokens"]["texts"] is None


async def test_late_and_malformed_requests_are_taken_and_not_answered(bus: Bus) -> None:
    async with texts_replica(bus):
        late = TextsRequest(request="late", gateway="g", pool="tiny", ids=bytes(4), answer_by_s=1.0)
        odd = TextsRequest(request="odd", gateway="g", pool="tiny", ids=bytes(3), answer_by_s=bus.clock.now_s() + 60)
        good = TextsRequest(request="good", gateway="g", pool="tiny", ids=bytes(4), answer_by_s=bus.clock.now_s() + 60)
        async with bus.requests.listening(streams.replies("g")) as listening:
            for message in (late, odd, good):
                await bus.publish(Outgoing(streams.serve("tiny", "a", message.request), message, message.request))
            answer = await listening.next(60)
            more = await listening.next(0.3)
        await eventually_equals(lambda: bus.streams.backlog(streams.PROMPTS), 0, 60)
    assert answer is not None and b"good" in answer.body
    assert more is None


CHAT = Chat.load(MODEL)


@given(st.lists(st.tuples(st.integers(0, CHAT.vocabulary - 1), st.booleans()), min_size=1, max_size=60))
def test_messages_have_every_token_once_whatever_was_sampled(tokens: list[tuple[int, bool]]) -> None:
    ids, sampled = [0, *(token for token, _ in tokens)], [0, *(int(one) for _, one in tokens)]
    attempt = kept_attempt(ids, sampled)
    request = TextsRequest(request="r", gateway="g", pool="tiny", ids=np.asarray(ids, "<i4").tobytes(), answer_by_s=0)
    texts = texts_of(CHAT, request)
    (found,) = tokens_of([attempt], texts)
    messages = messages_of(found, texts.openings)
    assert [token for message in messages for token in message.tokens] == found
    for message in messages[1:]:
        assert message.tokens[0].is_control and not message.tokens[0].is_sampled
    answer = SamplesAnswer(task="a", steps=[1], samples=step_samples("a", 1, [attempt]))
    assert samples_of(answer, texts).model_dump_json() and samples_of(answer, None).data[0].tokens.texts is None


def test_numbers_that_are_none_are_null() -> None:
    attempt: Any = kept_attempt(trainer_logprobs=np.asarray([0, 0, np.nan, -np.inf], "<f4").tobytes())
    answer = SamplesAnswer(task="a", steps=[1], samples=step_samples("a", 1, [attempt]))
    texts = TokenTexts(request="r", texts=[b"\xe2", b"\x98\x83", b"a", b""], control=bytes(4), openings=[Opening(role="user", text="<u>")])
    found = samples_of(answer, texts).data[0].tokens
    assert found.trainer_logprobs == [None] * 4
    assert found.texts == ["\\xe2", "\\x98\\x83", "a", ""]


async def test_samples_of_a_task_are_described(door: httpx.AsyncClient) -> None:
    await door.post("/v1/tasks", json=spec(keep={"samples": 17}))
    answer = await door.post("/v1/tasks?dry_run=true", json=spec(keep={"samples": 17}))
    assert "keep.samples" in answer.text
