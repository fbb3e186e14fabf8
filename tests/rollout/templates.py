"""Chat templates, and turns that are rendered with them."""

from copy import copy

from common.messages import ChatMessage, TokenRecord, TurnRequest
from common.spec import Limits
from rollout_svc.text.chat import Chat
from tests.support.rollout.requests import END

LIMITS = Limits(max_prompt_tokens=1000, max_reply_tokens=400)
OPENING = """{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- if not (enable_thinking | default(true)) %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}"""
KEEPS = (
    """{%- for m in messages %}
{%- set thinking = '<think>\n\n</think>\n\n' if m.role == 'assistant' and enable_thinking is false else '' %}
{{- '<|im_start|>' + m.role + '\n' + thinking + m.content + '<|im_end|>\n' }}
{%- endfor %}"""
    + OPENING
)
"""Thinks unless told otherwise, and writes earlier replies as they were sampled."""
QUESTION = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="What is 3 + 4?")]


def with_template(chat: Chat, template: str) -> Chat:
    tokenizer = copy(chat._tokenizer)
    tokenizer.chat_template = template
    return Chat(tokenizer, [END])


def turn(record: TokenRecord, messages: list[ChatMessage]) -> TurnRequest:
    return TurnRequest(member=0, turn=0 if len(record) == 0 else 1, transcript=record, messages=messages, state=b"")
