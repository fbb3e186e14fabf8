"""Texts of single tokens, and what the chat template writes before messages."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.messages import TextsRequest
from rollout_svc.serving.service import texts_of
from rollout_svc.text.chat import Chat
from tests.support.rollout.requests import POOL

COMPOSE = str(Path(POOL.model).parent / "compose")


def request(ids: list[int]) -> TextsRequest:
    return TextsRequest(request="r", gateway="g", pool="tiny", ids=np.asarray(ids, "<i4").tobytes(), answer_by_s=0)


@pytest.mark.parametrize("text", ["é🙂 日本", "<|im_end|>", "a\u202eb", "<tool_call>{}</tool_call>"])
async def test_bytes_of_tokens_are_the_text_together_and_only_the_templates_are_control_tokens(text: str) -> None:
    chat = Chat.load(POOL.model)
    ids, rendered = await chat.conversation([{"role": "user", "content": text}], [], {}, 1000)
    found = texts_of(chat, request(ids))
    assert b"".join(found.texts).decode() == rendered.replace("\U0010fffc", "")
    controls = [text.decode() for text, control in zip(found.texts, found.control, strict=True) if control]
    assert controls == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]


@pytest.mark.parametrize(
    ("model", "openings"),
    [
        (POOL.model, {role: f"<|im_start|>{role}" for role in ("system", "user", "assistant", "tool")}),
        (COMPOSE, {role: f"<|{role}|>" for role in ("system", "user", "assistant", "tool")}),
    ],
)
def test_openings_are_those_of_the_template(model: str, openings: dict[str, str]) -> None:
    assert {one.role: one.text for one in Chat.load(model).openings} == openings


QWEN = (
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
)
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


@pytest.mark.parametrize(("template", "tool"), [(QWEN, "<|im_start|>user\n<tool_response>"), (PLAIN, None)])
def test_tools_may_answer_as_users_and_plain_texts_open_nothing(template: str, tool: str | None) -> None:
    chat = Chat.load(POOL.model)
    tokenizer: Any = chat._tokenizer
    tokenizer.chat_template = template
    found = {one.role: one.text for one in Chat(tokenizer, chat.stop_ids).openings}
    assert found.get("tool") == tool
    assert bool(found) is (tool is not None)


@pytest.mark.parametrize("ids", [[-1], [10**9]])
def test_ids_that_are_no_tokens_are_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="tokens are 0 to"):
        texts_of(Chat.load(POOL.model), request(ids))


def test_nothing_has_no_texts() -> None:
    assert texts_of(Chat.load(POOL.model), request([])).texts == []
