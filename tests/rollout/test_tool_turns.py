"""Answers of tools under templates that demand a call before them, ids of one form, or a template of their own."""

import json
import shutil
from copy import copy
from pathlib import Path
from typing import Any

import pytest

from common.errors import Fatal
from common.messages import ChatMessage, TokenRecord
from common.spec import Limits
from rollout_svc.text.chat import Chat, UnusablePrompt
from tests.rollout.templates import LIMITS, QUESTION, turn, with_template
from tests.support.rollout.requests import END, POOL

OPENING = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
REPLY = """{%- macro said(m) %}{{- '<|im_start|>' + m.role + '\\n' + m.content -}}
{%- for call in m.tool_calls or [] %}{{- '<call>' + call.id + ' ' + call.function.name + (call.function.arguments | tojson) -}}{%- endfor %}
{{- '<|im_end|>\\n' -}}{%- endmacro %}"""
NINE = (
    REPLY
    + """{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if m.tool_call_id is not defined or m.tool_call_id | length != 9 %}{{ raise_exception('ids have nine characters') }}{%- endif %}
{{- '<|im_start|>tool\\n' + m.content + '<|im_end|>\\n' }}
{%- else %}{{- said(m) }}{%- endif %}{%- endfor %}"""
    + OPENING
)
"""Demands ids as Mistral's templates do."""
BEHIND = (
    REPLY
    + """{%- set last = namespace(call=none) %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if last.call is none %}{{ raise_exception('no assistant message with a tool call before') }}{%- endif %}
{{- '<|im_start|>tool ' + m.name + '\\n' + m.content + '<|im_end|>\\n' }}
{%- else %}{{- said(m) }}{%- if m.tool_calls %}{%- set last.call = m.tool_calls[0] %}{%- endif %}{%- endif %}{%- endfor %}"""
    + OPENING
)
"""Demands a call before an answer, as that of gpt-oss."""
NEVER = "{%- for m in messages %}{%- if m.role == 'tool' %}{{ raise_exception('no tools') }}{%- endif %}{{- m.content }}{%- endfor %}"
ANSWERS = [ChatMessage(role="tool", content="12", name="add"), ChatMessage(role="tool", content="no such tool")]
SAID = {
    NINE: "<|im_start|>tool\n12<|im_end|>\n<|im_start|>tool\nno such tool<|im_end|>\n",
    BEHIND: "<|im_start|>tool add\n12<|im_end|>\n<|im_start|>tool a_made_up_tool\nno such tool<|im_end|>\n",
}


@pytest.mark.parametrize("template", SAID)
@pytest.mark.parametrize("ended", [True, False])
def test_answers_follow_a_reply_under_a_template_that_demands_calls_and_ids(chat: Chat, template: str, ended: bool) -> None:
    strict = with_template(chat, template)
    first = strict.with_messages(turn(TokenRecord(), QUESTION), LIMITS)
    sampled = [*strict._encode("<call>add"), *([END] if ended else [])]
    answered = first.with_sampled(sampled, [-0.5] * len(sampled))
    record = strict.with_messages(turn(answered, ANSWERS), LIMITS)
    assert record.ids.startswith(answered.ids)
    added = strict.decode(record.ids_T().tolist()[len(answered) :])
    assert added == ("" if ended else "<|im_end|>") + "\n" + SAID[template] + "<|im_start|>assistant\n"
    assert strict.takes_answers


def test_long_answers_are_cut_there_too(chat: Chat) -> None:
    strict = with_template(chat, BEHIND)
    answered = strict.with_messages(turn(TokenRecord(), QUESTION), LIMITS).with_sampled([END], [-0.5])
    record = strict.with_messages(turn(answered, [ChatMessage(role="tool", content="12 " * 500, name="add")]), Limits(max_reply_tokens=60))
    assert len(record) - len(answered) <= 60 and "...<|im_end|>" in strict.decode(record.ids_T().tolist())


def test_template_that_takes_no_answers_is_known_before_any_prompt(chat: Chat) -> None:
    never = with_template(chat, NEVER)
    assert chat.takes_answers and not never.takes_answers
    answered = TokenRecord().with_context([1, 5]).with_sampled([END], [-0.1])
    with pytest.raises(UnusablePrompt, match="refuses these messages: no tools"):
        never.with_messages(turn(answered, ANSWERS), LIMITS)


@pytest.mark.parametrize("call_id", ["call_0123456789abcdef01234567_0", "abcdefghi", "functions.add:0"])
async def test_conversation_has_ids_that_the_template_takes(chat: Chat, call_id: str) -> None:
    """As our own answers have them, and as those of other servers; an id that the template takes stays."""
    call = {"id": call_id, "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "Add."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "12", "tool_call_id": call_id},
    ]
    ids, rendered = await with_template(chat, NINE).conversation(history, [], {}, 400)
    assert ids and rendered.endswith(SAID[NINE].partition("\n<|im_start|>")[0] + "\n<|im_start|>assistant\n")
    assert (call_id in rendered) == (len(call_id) == 9)
    ids, rendered = await with_template(chat, BEHIND).conversation(history, [], {}, 400)
    assert ids and "<|im_start|>tool add\n12" in rendered, "the name is that of the call"


def test_answers_are_written_by_the_template_for_tools_where_there_is_one(chat: Chat) -> None:
    tokenizer = copy(chat._tokenizer)
    tokenizer.chat_template = {"default": NEVER, "tool_use": BEHIND}
    named = Chat(tokenizer, [END])
    assert named.takes_answers
    record = named.with_messages(turn(TokenRecord().with_context([1, 5]).with_sampled([END], [-0.1]), ANSWERS), LIMITS)
    assert named.decode(record.ids_T().tolist()).endswith(SAID[BEHIND] + "<|im_start|>assistant\n")


def test_model_whose_templates_have_no_default_does_not_start(tmp_path: Path) -> None:
    model = shutil.copytree(POOL.model, tmp_path / "model")
    (model / "chat_template.jinja").unlink()
    (model / "additional_chat_templates").mkdir()
    for name in ("rag", "tool_use"):
        (model / "additional_chat_templates" / f"{name}.jinja").write_text(BEHIND)
    with pytest.raises(Fatal, match=r"has chat templates rag, tool_use, and none named default"):
        Chat.load(str(model))


async def test_flags_and_post_processors_of_a_tokenizer_change_no_prompt_and_no_reply(tmp_path: Path, chat: Chat) -> None:
    model = shutil.copytree(POOL.model, tmp_path / "model")
    config, tokenizer = (json.loads((model / name).read_text()) for name in ("tokenizer_config.json", "tokenizer.json"))
    config |= {"split_special_tokens": True, "clean_up_tokenization_spaces": True}
    special = {name: {"id": name, "ids": [number], "tokens": [name]} for name, number in (("<|im_start|>", 1), ("<|im_end|>", 2))}
    around = [{"SpecialToken": {"id": name, "type_id": 0}} for name in special]
    whole = [around[0], {"Sequence": {"id": "A", "type_id": 0}}, around[1]]
    tokenizer["post_processor"] = {"type": "TemplateProcessing", "single": whole, "pair": whole, "special_tokens": special}
    tokenizer["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    odd = Chat.load(str(model))
    request = turn(TokenRecord(), QUESTION)
    assert odd.with_messages(request, LIMITS).ids == chat.with_messages(request, LIMITS).ids
    assert await odd.plain("3 + 4", 100) == [1, *await chat.plain("3 + 4", 100)], "a token that ends each text begins none"
    ids = chat._encode("is n't it , he ' s")
    assert odd.text(ids) == chat.text(ids) == "is n't it , he ' s"


def test_generation_settings_that_are_invalid_are_named(tmp_path: Path) -> None:
    model = shutil.copytree(POOL.model, tmp_path / "model")
    (model / "generation_config.json").write_text(json.dumps({"max_new_tokens": -1}))
    with pytest.raises(Fatal, match=r"generation_config.json of .* is not valid: `max_new_tokens` must be greater than 0"):
        Chat.load(str(model))
