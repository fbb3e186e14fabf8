"""Chat: templates to tokens, appended to and never re-encoded."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers.normalizers import Lowercase

from common.errors import Fatal
from common.messages import ChatMessage, TokenRecord, TurnRequest
from common.spec import Limits
from rollout_svc.text.chat import Chat, UnusablePrompt
from tests.support.rollout.requests import END, POOL

LIMITS = Limits(max_prompt_tokens=100, max_reply_tokens=40)


def said(role: str, content: str) -> ChatMessage:
    return ChatMessage.model_validate({"role": role, "content": content})


def request(transcript: TokenRecord, *messages: ChatMessage, turn: int = 0, tools: list[dict[str, object]] | None = None) -> TurnRequest:
    return TurnRequest.model_validate(
        {"member": 0, "turn": turn, "transcript": transcript, "messages": messages, "tools": tools or [], "state": b""}
    )


def whole(chat: Chat, messages: list[ChatMessage]) -> list[int]:
    """The conversation as the template alone would encode it, opening of the next reply included."""
    return chat.with_messages(request(TokenRecord(), *messages), Limits(max_prompt_tokens=10_000)).ids_T().tolist()


def test_first_turn_is_the_chat_template(chat: Chat) -> None:
    record = chat.with_messages(request(TokenRecord(), said("system", "Be brief."), said("user", "What is 3 + 4?")), LIMITS)
    text = chat._tokenizer.decode(record.ids_T().tolist())
    assert text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n<|im_start|>assistant\n"
    assert record.sampled_tokens == 0


def test_tools_are_part_of_the_first_prompt(chat: Chat) -> None:
    tool: dict[str, object] = {"type": "function", "function": {"name": "calculator", "parameters": {"type": "object", "properties": {}}}}
    record = chat.with_messages(request(TokenRecord(), said("user", "What is 3 + 4?"), tools=[tool]), Limits(max_prompt_tokens=200))
    assert '"calculator"' in chat._tokenizer.decode(record.ids_T().tolist())


@pytest.mark.parametrize("ended", [True, False])
def test_later_turn_only_appends_and_reads_as_the_template(chat: Chat, ended: bool) -> None:
    first = [said("user", "What is 3 + 4?")]
    reply = chat._encode("It is 8.")
    asked = chat.with_messages(request(TokenRecord(), *first), LIMITS)
    sampled = [*reply, END] if ended else reply
    answered = asked.with_sampled(sampled, [-0.5] * len(sampled))
    more = [said("tool", "wrong"), said("user", "Try again.")]
    record = chat.with_messages(request(answered, *more, turn=1), LIMITS)

    assert record.ids.startswith(answered.ids)
    assert record.ids_T().tolist() == whole(chat, [*first, said("assistant", "It is 8."), *more])
    assert record.logprobs.startswith(answered.logprobs)
    assert record.sampled_T().tolist() == [0] * len(asked) + [1] * len(sampled) + [0] * (len(record) - len(answered))
    assert record.logprobs_T()[len(answered) :].tolist() == [0.0] * (len(record) - len(answered))


def test_odd_tokenization_of_a_reply_is_kept(chat: Chat) -> None:
    asked = chat.with_messages(request(TokenRecord(), said("user", "Say hello.")), LIMITS)
    letters = [token for letter in "hello" for token in chat._encode(letter)]
    assert letters != chat._encode("hello"), "the policy spells a word in letters that the tokenizer joins"
    answered = asked.with_sampled([*letters, END], [-1.0] * (len(letters) + 1))
    record = chat.with_messages(request(answered, said("user", "Again."), turn=1), LIMITS)
    assert record.ids_T().tolist()[len(asked) : len(answered)] == [*letters, END]


def test_reply_is_read_without_its_end_but_with_other_special_tokens(chat: Chat) -> None:
    call = chat._encode('<tool_call>{"name": "calculator"}</tool_call>')
    assert chat.text([*call, END]) == '<tool_call>{"name": "calculator"}</tool_call>'
    assert chat.text(call) == '<tool_call>{"name": "calculator"}</tool_call>'
    assert chat.text([END]) == ""
    assert chat.text([]) == ""


def test_too_long_prompt_names_both_numbers(chat: Chat) -> None:
    messages = [said("user", "one two three " * 50)]
    length = len(whole(chat, messages))
    with pytest.raises(UnusablePrompt, match=rf"has {length} tokens, but limits.max_prompt_tokens is 100"):
        chat.with_messages(request(TokenRecord(), *messages), LIMITS)


def test_too_long_environment_reply_names_both_numbers(chat: Chat) -> None:
    answered = chat.with_messages(request(TokenRecord(), said("user", "Go.")), LIMITS).with_sampled([END], [-0.1])
    with pytest.raises(UnusablePrompt, match=r"reply has \d+ tokens, but limits.max_reply_tokens is 40"):
        chat.with_messages(request(answered, said("user", "no " * 60), turn=1), LIMITS)


@pytest.mark.parametrize("answers", [["12 " * 200], ["ok", "7 " * 300, "twelve " * 100]])
def test_too_long_answers_of_tools_are_cut_to_what_fits(chat: Chat, answers: list[str]) -> None:
    answered = chat.with_messages(request(TokenRecord(), said("user", "Go.")), LIMITS).with_sampled([END], [-0.1])
    asking = request(answered, *(said("tool", answer) for answer in answers), turn=1)
    record = chat.with_messages(asking, LIMITS)
    assert record.ids.startswith(answered.ids)
    assert LIMITS.max_reply_tokens - 4 <= len(record) - len(answered) <= LIMITS.max_reply_tokens
    text = chat._tokenizer.decode(record.ids_T().tolist())
    assert text.count("...<|im_end|>") == sum(len(answer) > 10 for answer in answers)
    assert text.endswith("<|im_start|>assistant\n")


def test_limit_that_leaves_no_room_for_any_answer_is_an_unusable_prompt(chat: Chat) -> None:
    answered = chat.with_messages(request(TokenRecord(), said("user", "Go.")), LIMITS).with_sampled([END], [-0.1])
    with pytest.raises(UnusablePrompt, match=r"limits.max_reply_tokens is 3"):
        chat.with_messages(request(answered, said("tool", "no " * 60), turn=1), Limits(max_reply_tokens=3))


def test_members_of_a_group_share_the_encoding_of_their_prompt(chat: Chat) -> None:
    messages = [said("user", "What is 5 + 6?")]
    before = chat._first.cache_info()  # pyright: ignore
    for _ in range(8):
        whole(chat, messages)
    after = chat._first.cache_info()  # pyright: ignore
    assert (after.misses - before.misses, after.hits - before.hits) == (1, 7)


def test_repeated_message_of_an_environment_is_encoded_once_however_the_reply_ended(chat: Chat) -> None:
    asked = chat.with_messages(request(TokenRecord(), said("user", "Say hello.")), LIMITS)
    reply = chat._encode("hello")
    cut_short = asked.with_sampled(reply, [-1.0] * len(reply))
    ended = asked.with_sampled([*reply, END], [-1.0] * (len(reply) + 1))
    records = [chat.with_messages(request(answered, said("user", "Once more."), turn=1), LIMITS) for answered in (cut_short, ended)]
    assert records[0].ids == records[1].ids
    before = chat._cached_later.cache_info().hits  # pyright: ignore[reportFunctionMemberAccess]
    assert chat.with_messages(request(ended, said("user", "Once more."), turn=1), LIMITS).ids == records[1].ids
    assert chat._cached_later.cache_info().hits == before + 1  # pyright: ignore[reportFunctionMemberAccess]


class Counted:
    """A tokenizer that remembers how many characters it was given, and in which threads."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.chars: list[int] = []
        self.threads: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.chars.append(len(text))
        self.threads.add(threading.get_ident())
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)


def counted(chat: Chat) -> tuple[Chat, Counted]:
    tokenizer = Counted(chat._tokenizer)
    return Chat(tokenizer, chat.stop_ids), tokenizer


async def test_prompt_with_more_characters_than_any_tokens_spell_is_refused_without_encoding(chat: Chat) -> None:
    fresh, tokenizer = counted(chat)
    with pytest.raises(
        UnusablePrompt, match=r"the prompt has 40000\d\d characters, far more than fit, but limits.max_prompt_tokens is 100"
    ):
        await fresh.prompt(request(TokenRecord(), said("user", "a b c " * 666_667)), LIMITS)
    assert tokenizer.chars == []


@pytest.mark.parametrize(
    "text", [" multiplication", "u\N{COMBINING DIAERESIS}\N{COMBINING ACUTE ACCENT}", "\N{PILE OF POO}", "<|im_start|>"]
)
def test_no_token_stands_for_more_characters_than_thought(chat: Chat, text: str) -> None:
    max_chars = chat._max_chars
    assert max_chars is not None
    assert len(text * 50) <= max_chars * len(chat._encode(text * 50))


def test_characters_say_nothing_where_tokens_may_leave_some_out(chat: Chat) -> None:
    unknown = Counted(chat._tokenizer)
    backend = chat._tokenizer.backend_tokenizer
    unknown.backend_tokenizer = SimpleNamespace(decoder=backend.decoder, normalizer=Lowercase(), to_str=backend.to_str)  # pyright: ignore
    assert Chat(unknown, chat.stop_ids)._max_chars is None


async def test_what_is_long_is_encoded_beside_the_event_loop_and_refused_once(chat: Chat) -> None:
    fresh, tokenizer = counted(chat)
    long = request(TokenRecord(), said("user", "a b c " * 5_000))
    fits, does_not = Limits(max_prompt_tokens=100_000), Limits(max_prompt_tokens=5_000)
    records = await asyncio.gather(*(fresh.prompt(long, fits) for _ in range(4)))
    assert {record.ids for record in records} == {fresh.with_messages(long, fits).ids}
    assert len(tokenizer.chars) == 1
    refusals = await asyncio.gather(*(fresh.prompt(long, does_not) for _ in range(4)), return_exceptions=True)
    assert {str(refusal) for refusal in refusals} == {f"the prompt has {len(records[0])} tokens, but limits.max_prompt_tokens is 5000"}
    assert len(tokenizer.chars) == 2
    assert threading.get_ident() not in tokenizer.threads


def test_prompts_that_are_too_long_are_not_kept(chat: Chat) -> None:
    fresh = Chat(chat._tokenizer, chat.stop_ids)
    with pytest.raises(UnusablePrompt):
        fresh.with_messages(request(TokenRecord(), said("user", "one two three " * 50)), LIMITS)
    assert fresh._first.cache_info().currsize == 0  # pyright: ignore[reportFunctionMemberAccess]


@pytest.mark.parametrize("limit", [40, 2000])
def test_cutting_a_very_long_answer_encodes_little_more_than_what_is_kept(chat: Chat, limit: int) -> None:
    fresh, tokenizer = counted(chat)
    answered = chat.with_messages(request(TokenRecord(), said("user", "Go.")), LIMITS).with_sampled([END], [-0.1])
    limits = Limits(max_reply_tokens=limit)
    record = fresh.with_messages(request(answered, said("tool", "line 12: value = 3.14159, ok\n" * 9_000), turn=1), limits)
    assert limit - 4 <= len(record) - len(answered) <= limit
    kept = len(chat._tokenizer.decode(record.ids_T().tolist()[len(answered) :]))
    assert max(tokenizer.chars) < 3 * kept + 200
    assert len(tokenizer.chars) < 25


def test_template_that_refuses_is_an_unusable_prompt(chat: Chat) -> None:
    strict = Chat(_with_template(chat, "{{ raise_exception('roles must alternate') }}"), [END])
    with pytest.raises(UnusablePrompt, match="roles must alternate"):
        strict.with_messages(request(TokenRecord(), said("user", "Hi.")), LIMITS)


def test_template_that_hides_earlier_replies_is_an_unusable_prompt(chat: Chat) -> None:
    template = "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    forgetful = Chat(_with_template(chat, template), [END])
    answered = TokenRecord().with_context([1, 5]).with_sampled([END], [-0.1])
    with pytest.raises(UnusablePrompt, match="leaves out earlier replies"):
        forgetful.with_messages(request(answered, said("user", "Hi."), turn=1), LIMITS)


def test_ends_of_a_turn_are_those_that_the_model_names(chat: Chat) -> None:
    assert chat.stop_ids == (END,)


def test_model_without_tokenizer_or_template_is_fatal(tmp_path: Path) -> None:
    with pytest.raises(Fatal, match="no tokenizer for"):
        Chat.load(str(tmp_path))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((Path(POOL.model) / name).read_bytes())
    with pytest.raises(Fatal, match="has no chat template"):
        Chat.load(str(tmp_path))


def _with_template(chat: Chat, template: str) -> object:
    from copy import copy

    tokenizer = copy(chat._tokenizer)
    tokenizer.chat_template = template
    return tokenizer
