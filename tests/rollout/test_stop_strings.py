"""Stop strings: a reply ends with the token that completes one, whatever the engine's timing."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.messages import ChatMessage, TurnRequest
from common.spec import Sampling
from rollout_svc.engine.engine import Engine, Sampled
from rollout_svc.text.chat import Chat
from rollout_svc.text.reply_text import StopStrings
from tests.rollout.oracle import Oracle
from tests.rollout.stage import Stage, agrees, first_turns, group_of
from tests.support.rollout.requests import END, POOL, sample_request

CHAT = Chat.load(POOL.model)


def first_completing(chat: Chat, ids: Sequence[int], strings: Sequence[str]) -> int | None:
    """Length of the shortest beginning of `ids` whose text has one of the strings, by decoding every beginning whole."""
    for length in range(1, len(ids) + 1):
        text = chat._tokenizer.decode(list(ids[:length]), skip_special_tokens=False)
        if any(string in text for string in strings):
            return length
    return None


def watched(chat: Chat, strings: Sequence[str]) -> StopStrings:
    found = chat.stop_strings(strings)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "strings", "kept"),
    [
        ("<answer>12</answer> and more", ["</answer>"], "<answer>12</answer>"),
        ("one\ntwo\nthree", ["\n"], "one\n"),
        ("12 + 7 = 19. So 19.", ["nothing", "= 19", "So"], "12 + 7 = 19"),
        ("grüße 💩 an alle", ["💩"], "grüße 💩"),
        ("a tool <tool_call>x</tool_call> b", ["</tool_call>"], "a tool <tool_call>x</tool_call>"),
    ],
)
def test_reply_ends_where_its_text_has_the_string(chat: Chat, text: str, strings: list[str], kept: str) -> None:
    ids = chat._encode(text)
    after = watched(chat, strings).tokens_after(ids)
    assert after is not None
    assert chat.text(ids[: len(ids) - after]).startswith(kept)
    assert not chat.text(ids[: len(ids) - after - 1]).startswith(kept)


@given(
    st.lists(st.integers(0, len(CHAT._tokenizer) - 1) | st.sampled_from(CHAT._encode("</answer>\n ü💩 12")), max_size=40),
    st.lists(st.sampled_from(["</answer>", "\n", "12", "ü", "💩", "er>", " th", "a"]), min_size=1, max_size=4),
    st.integers(1, 40),
)
def test_any_tokens_end_at_the_first_that_completes_a_string_in_parts_of_any_size(ids: list[int], strings: list[str], part: int) -> None:
    stops, read, found = watched(CHAT, strings), 0, None
    for start in range(0, len(ids), part):
        read = min(start + part, len(ids))
        if (after := stops.tokens_after(ids[start:read])) is not None:
            found = read - after
            break
    assert found == first_completing(CHAT, ids, strings)


def test_task_without_stop_strings_has_nothing_watched(chat: Chat) -> None:
    assert chat.stop_strings(()) is None


async def unstopped(engine: Engine, chat: Chat, seeds: range) -> list[Sampled]:
    return list(await asyncio.gather(*(engine.sample(sample_request(seed=seed, max_tokens=48, stop_ids=[])) for seed in seeds)))


async def test_stopped_reply_is_the_beginning_of_the_unstopped_one_with_equal_logprobs(engine: Engine, chat: Chat) -> None:
    seeds = range(12)
    whole = await unstopped(engine, chat, seeds)
    strings = [chat.text(one.ids)[7:9] for one in whole]
    lengths = [first_completing(chat, one.ids, [string]) for one, string in zip(whole, strings, strict=True)]
    for _ in range(2):  # repeated: how far ahead the engine was does not show
        requests = [
            sample_request(seed=seed, max_tokens=48, stop_ids=[], stop_strings=watched(chat, [string]))
            for seed, string in zip(seeds, strings, strict=True)
        ]
        stopped = await asyncio.gather(*(engine.sample(request) for request in requests))
        for one, length, cut in zip(whole, lengths, stopped, strict=True):
            assert (cut.ids, cut.finish) == (one.ids[:length], "stop" if length else "length")
            np.testing.assert_allclose(cut.logprobs, one.logprobs[:length], atol=1e-5)
    assert any(length is not None and length < 40 for length in lengths)


async def test_end_of_the_turn_and_the_limit_still_end_a_reply_without_the_string(engine: Engine, chat: Chat) -> None:
    for stop_ids, max_tokens in (([END], 200), ([], 9)):
        plain, watching = await asyncio.gather(
            engine.sample(sample_request(max_tokens=max_tokens, stop_ids=stop_ids)),
            engine.sample(sample_request(max_tokens=max_tokens, stop_ids=stop_ids, stop_strings=watched(chat, ["§§"]))),
        )
        assert (watching.ids, watching.finish) == (plain.ids, plain.finish)
        np.testing.assert_allclose(watching.logprobs, plain.logprobs, atol=1e-5)


async def test_string_at_the_limit_counts_as_an_end(engine: Engine, chat: Chat) -> None:
    plain = await engine.sample(sample_request(max_tokens=9, stop_ids=[]))
    last = chat.text(plain.ids)[-1]
    length = first_completing(chat, plain.ids, [last])
    stopped = await engine.sample(sample_request(max_tokens=length or 0, stop_ids=[], stop_strings=watched(chat, [last])))
    assert (stopped.finish, stopped.ids) == ("stop", plain.ids[:length])


async def test_member_with_a_stop_string_ends_with_it_and_its_next_turn_closes_the_reply(
    stage: Stage, endless: Chat, chat: Chat, oracle: Oracle
) -> None:
    group = group_of("stopping", sampling=Sampling(temperature=0.9, max_tokens=48, stop=("1", "3")))
    turns = await stage.answer(group, *first_turns(range(4)))
    stopped = {member: turn for member, turn in turns.items() if any(string in turn.reply for string in group.sampling.stop)}
    assert stopped, "the tiny model writes digits"
    for turn in stopped.values():
        assert turn.finish == "stop"
        agrees(oracle, turn, None, 0.9)
        sampled = turn.transcript.ids_T()[turn.transcript.sampled_T().astype(bool)].tolist()
        assert len(sampled) == first_completing(chat, sampled, group.sampling.stop)
        more = TurnRequest(
            member=turn.member, turn=1, transcript=turn.transcript, messages=[ChatMessage(role="user", content="So?")], state=b""
        )
        following = chat.with_messages(more, group.limits)
        assert following.ids_T().tolist()[len(turn.transcript)] == END
        assert following.sampled_T()[len(turn.transcript) :].sum() == 0
