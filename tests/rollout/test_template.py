"""Arguments of the chat template: rendered as `apply_chat_template` renders them, in every turn and every cache."""

from copy import copy
from itertools import pairwise
from typing import Any

import pytest

from bench.trl import installed
from common.messages import ChatMessage, TokenRecord
from common.spec import Limits
from rollout_svc.text.chat import Chat, UnusablePrompt
from tests.rollout.templates import KEEPS, LIMITS, OPENING, QUESTION, turn, with_template
from tests.support.rollout.requests import END

STRIPS = (
    """{%- set last = namespace(question=0) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set last.question = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'assistant' and loop.index0 < last.question %}
{{- '<|im_start|>assistant\n' + m.content.split('</think>')[-1].lstrip('\n') + '<|im_end|>\n' }}
{%- elif m.role == 'assistant' and loop.last %}
{{- '<|im_start|>assistant\n<think>\n\n</think>\n\n' + m.content + '<|im_end|>\n' }}
{%- elif m.role == 'tool' %}
{{- '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}
{%- else %}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}"""
    + OPENING
)
"""Leaves the thinking of replies before the last question out, as that of Qwen3 does."""
OFF: dict[str, Any] = {"enable_thinking": False}
REPLIES = ["<think>\nadd\n</think>\n\nIt is 8.", "It is 6.", "It is 7."]
MORE = [
    [ChatMessage(role="user", content="Wrong. Try again.")],
    [ChatMessage(role="tool", content="7"), ChatMessage(role="user", content="So?")],
    [ChatMessage(role="tool", content="right")],
]


def rendered(chat: Chat, messages: list[dict[str, str]], **arguments: Any) -> list[int]:
    """The conversation as Transformers renders and encodes it."""
    text = chat._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **arguments)
    return list(chat._tokenizer.encode(text, add_special_tokens=False))


def later(chat: Chat, arguments: dict[str, Any]) -> list[tuple[list[int], list[int], list[dict[str, str]]]]:
    """For each turn: the tokens that it appends, all tokens, and the messages before it with those that it appends."""
    record = chat.with_messages(turn(TokenRecord(), QUESTION), LIMITS, arguments)
    messages = [message.model_dump() for message in QUESTION]
    found = [(record.ids_T().tolist(), record.ids_T().tolist(), messages)]
    for reply, more in zip(REPLIES, MORE, strict=True):
        sampled = [*chat._encode(reply), END]
        answered = record.with_sampled(sampled, [-0.5] * len(sampled))
        record = chat.with_messages(turn(answered, more), LIMITS, arguments)
        messages = [*messages, {"role": "assistant", "content": reply}, *(message.model_dump() for message in more)]
        found.append((record.ids_T().tolist()[len(answered) :], record.ids_T().tolist(), messages))
    return found


def follows(whole: list[int], appended: list[int]) -> bool:
    return whole[-len(appended) :] == appended


@pytest.mark.parametrize("arguments", [OFF, {"enable_thinking": True}, {}])
def test_every_turn_is_what_transformers_renders_with_the_arguments(chat: Chat, arguments: dict[str, Any]) -> None:
    """Token by token, the whole conversation: the template writes earlier replies as they were sampled."""
    keeps = with_template(chat, KEEPS)
    for _, ids, messages in later(keeps, arguments):
        assert ids == rendered(keeps, messages, **arguments)


@pytest.mark.parametrize("arguments", [OFF, {}])
def test_template_that_strips_thinking_appends_what_follows_the_reply_and_rewrites_nothing(chat: Chat, arguments: dict[str, Any]) -> None:
    strips = with_template(chat, STRIPS)
    turns = later(strips, arguments)
    assert turns[0][1] == rendered(strips, turns[0][2], **arguments)
    for (_, before, _), (appended, ids, messages) in pairwise(turns):
        assert follows(rendered(strips, messages, **arguments), appended)
        assert ids[: len(before)] == before
    off = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert chat._tokenizer.decode(turns[-1][0]).endswith(off if arguments else "<|im_start|>assistant\n")


def test_arguments_are_part_of_every_cache_key(chat: Chat) -> None:
    """`1` and `true` are equal in Python, and are different arguments all the same."""
    template = OPENING.replace("not (enable_thinking | default(true))", "enable_thinking is true")
    exact = with_template(chat, "{%- for m in messages %}{{ m.content }}<|im_end|>{%- endfor %}" + template)
    prompts = [exact.with_messages(turn(TokenRecord(), QUESTION), LIMITS, {"enable_thinking": value}).ids for value in (True, 1, True)]
    assert prompts[0] == prompts[2] != prompts[1]
    answered = TokenRecord().with_context([1, 5]).with_sampled([END], [-0.1])
    appended = [exact.with_messages(turn(answered, QUESTION), LIMITS, {"enable_thinking": value}).ids for value in (1, True, 1)]
    assert appended[0] == appended[2] != appended[1]


async def test_refusal_of_a_long_prompt_is_kept_for_its_arguments_only(chat: Chat) -> None:
    longer = with_template(chat, "{%- for m in messages %}{{ m.content * (times or 1) }}<|im_end|>{%- endfor %}")
    long = turn(TokenRecord(), [ChatMessage(role="user", content="a b c " * 2_000)])
    fits = Limits(max_prompt_tokens=20_000)
    once = await longer.prompt(long, fits)
    with pytest.raises(UnusablePrompt, match=f"has {4 * (len(once) - 1) + 1} tokens|far more than fit|tokens, but"):
        await longer.prompt(long, fits, {"times": 4})
    assert (await longer.prompt(long, fits)).ids == once.ids


def test_unknown_argument_is_refused_by_name_with_the_nearest_that_the_template_has(chat: Chat) -> None:
    keeps = with_template(chat, KEEPS)
    assert keeps.template_variables == {"enable_thinking"}
    with pytest.raises(UnusablePrompt, match=r"sampling\.template\.enable_thinkin: .* did you mean 'enable_thinking'\?"):
        keeps.with_messages(turn(TokenRecord(), QUESTION), LIMITS, {"enable_thinkin": False})
    with pytest.raises(UnusablePrompt, match=r"sampling\.template\.budget: .*; known here: none"):
        chat.with_messages(turn(TokenRecord(), QUESTION), LIMITS, {"budget": 3})


def test_argument_that_breaks_the_template_is_an_unusable_prompt(chat: Chat) -> None:
    counts = with_template(chat, "{{ 1 + budget }}{%- for m in messages %}{{ m.content }}{%- endfor %}")
    with pytest.raises(UnusablePrompt, match="refuses these messages: unsupported operand"):
        counts.with_messages(turn(TokenRecord(), QUESTION), LIMITS, {"budget": "many"})


def test_variables_are_those_of_all_templates_without_constants_and_special_tokens(chat: Chat) -> None:
    tokenizer = copy(chat._tokenizer)
    first = "{{ bos_token }}{% generation %}{{ effort }}{% endgeneration %}{{ raise_exception(eos_token) }}"
    second = "{% set day = date or strftime_now('%Y') %}{{ day }}{% for m in messages %}{% continue %}{% endfor %}{{ tools }}"
    tokenizer.chat_template = {"default": first, "tool_use": second}
    assert Chat(tokenizer, [END]).template_variables == {"effort", "date"}


@pytest.mark.acceptance
@pytest.mark.parametrize("name", ["qwen3", "qwen3_training", "qwen3_5_think", "qwen3_6", "glm4moe", "nemotron_3_nano"])
def test_published_templates_render_turn_after_turn_with_thinking_off(chat: Chat, name: str) -> None:
    """Templates of released models, as TRL's wheel brings them."""
    folder = next(installed().parents[1].glob("lib/python*/site-packages/trl/chat_templates"))
    published = with_template(chat, (folder / f"{name}.jinja").read_text())
    assert "enable_thinking" in published.template_variables
    turns = later(published, OFF)
    assert turns[0][1] == rendered(published, turns[0][2], **OFF)
    for appended, _, messages in turns[1:]:
        assert follows(rendered(published, messages, **OFF), appended)
    assert turns[0][1] != rendered(published, turns[0][2], enable_thinking=True)
