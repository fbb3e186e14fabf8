"""Answers of tools for templates that take them only behind a call, or with ids of one form.

Environments give an answer as a message of the role `tool` without an id, after a reply whose text has the call. Most templates write it
so. Others refuse it unless the message before has `tool_calls`, or unless ids have nine letters and digits, as Mistral's.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

from common.messages import ChatMessage

Messages = list[dict[str, Any]]
"""As chat templates take them."""
TOOL_USE = "tool_use"
"""Name that transformers gives a template for conversations with tools."""
UNNAMED = "a_made_up_tool"
"""Name in an answer to a call that could not be read."""


def plain(message: ChatMessage) -> dict[str, Any]:
    """The message as most templates take it."""
    return {"role": message.role, "content": message.content}


def answer_turn(dummy: Messages, messages: Sequence[ChatMessage]) -> tuple[Messages, Messages]:
    """`dummy` with calls in its last message, a reply, and `messages` as their answers: with ids and names."""
    calls: Messages = []
    answers: Messages = []
    for message in messages:
        if message.role == "tool":
            call = {"id": f"{len(calls):09}", "type": "function", "function": {"name": message.name or UNNAMED, "arguments": {}}}
            calls.append(call)
            answers.append({**plain(message), "tool_call_id": call["id"], "name": message.name or UNNAMED})
        else:
            answers.append(plain(message))
    return [*dummy[:-1], {**dummy[-1], "tool_calls": calls}], answers


def after_turn(before: str, whole: str, ends: Sequence[str]) -> str:
    """Of `whole`, what follows a reply: the end of its turn, and all after it. Empty where the template writes no such end.

    `before`: the rendered conversation up to that reply. `ends`: texts that end a turn.
    """
    reply = before.rstrip()
    end = max((text for text in ends if text and reply.endswith(text)), key=len, default="")
    return whole[len(reply) - len(end) :] if end and whole.startswith(reply) else ""


def named_template(templates: object, messages: Messages) -> dict[str, str]:
    """Arguments of `apply_chat_template` for a conversation with calls, of which a model may have a template of its own."""
    has_calls = any(message["role"] == "tool" or message.get("tool_calls") for message in messages)
    return {"chat_template": TOOL_USE} if has_calls and isinstance(templates, dict) and TOOL_USE in templates else {}


def plain_ids(messages: Messages) -> Messages:
    """`messages` with an id of nine letters and digits for each id of a call, and with the names of the tools in their answers."""
    names = {call["id"]: call["function"]["name"] for message in messages for call in message.get("tool_calls", ())}
    found: Messages = []
    for message in messages:
        other = dict(message)
        if calls := message.get("tool_calls"):
            other["tool_calls"] = [{**call, "id": _plain(call["id"])} for call in calls]
        if (of := message.get("tool_call_id")) is not None:
            other = {"name": names.get(of, UNNAMED), **other, "tool_call_id": _plain(of)}
        found.append(other)
    return found


def _plain(call: str) -> str:
    return hashlib.sha256(call.encode(errors="replace")).hexdigest()[:9]
