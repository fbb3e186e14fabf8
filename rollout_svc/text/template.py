"""The model's chat template: it renders messages, declares variables, and puts requirements on tool results.

Environments send a tool result as a message of role `tool` without an id, after a reply whose text has the call. Most templates accept
that. Others require `tool_calls` in the message before, or ids of nine letters and digits, as Mistral's.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, cast

from pydantic import JsonValue

from common.errors import Fatal
from common.messages import ChatMessage
from common.spec import NOT_ARGUMENTS, unknown_arguments
from rollout_svc.text.control_tokens import ControlTokens

Messages = list[dict[str, Any]]
"""Messages in the format of chat templates."""
TOOL_USE = "tool_use"
"""Name that transformers gives to a template for conversations with tools."""
UNNAMED = "a_made_up_tool"
"""Tool name in the result of a call that could not be parsed."""
DUMMY_REPLY = "a-made-up-reply"


class UnusablePrompt(Exception):
    """A prompt that cannot be sampled from; its text is shown to the task's owner."""


class Template:
    """Renders messages. Texts in them that spell control tokens are disarmed."""

    def __init__(self, tokenizer: Any, controls: ControlTokens, ends: Sequence[str]) -> None:
        """`tokenizer`: of transformers, whose classes are loosely typed. `ends`: end-of-turn texts."""
        self._tokenizer = tokenizer
        self._controls = controls
        self._ends = ends
        self.variables = template_variables(tokenizer)
        """Names of template variables that a task may set."""

    def render(self, messages: Messages, tools: list[Any], arguments: str, *, opens_reply: bool = True) -> str:
        """Text of `messages`. `arguments`: the task's, as JSON. If the template refuses the messages, it is retried with other call ids.

        Raises: UnusablePrompt.
        """
        chosen: dict[str, JsonValue] = json.loads(arguments)
        if complaints := [*unknown_arguments(chosen, self.variables)]:
            raise UnusablePrompt("; ".join(complaints))
        said: Any = [{**cast("dict[str, JsonValue]", self._controls.disarmed(message)), "role": message["role"]} for message in messages]
        named, other = named_template(self._tokenizer.chat_template, messages), plain_ids(said)
        given: Any = self._controls.disarmed(chosen, names=False)
        known: Any = self._controls.disarmed(tools) or None
        complaint = ""
        for tried in [said] if other == said else [said, other]:
            try:
                asked = {"tools": known, "add_generation_prompt": opens_reply, "tokenize": False, **named, **given}
                return str(self._tokenizer.apply_chat_template(tried, **asked))
            except Exception as error:  # template expressions may raise any exception, for a message or an argument of a wrong type
                complaint = complaint or str(error)
        raise UnusablePrompt(f"the model's chat template refuses these messages: {complaint}")

    def after_reply(self, messages: Sequence[ChatMessage], arguments: str) -> str:
        """Text after a reply: the end of its turn, `messages`, and the opening of the next reply. Raises: UnusablePrompt."""
        dummy: Messages = [{"role": "user", "content": "."}, {"role": "assistant", "content": DUMMY_REPLY}]
        try:
            after = self.render([*dummy, *map(plain, messages)], [], arguments).partition(DUMMY_REPLY)[2]
        except UnusablePrompt:
            if not any(message.role == "tool" for message in messages):
                raise
            said, answers = answer_turn(dummy, messages)
            before = self.render(said, [], arguments, opens_reply=False)
            after = after_turn(before, self.render([*said, *answers], [], arguments), self._ends)
        if not after:
            raise UnusablePrompt("the model's chat template leaves out earlier replies, so that turns cannot be appended to each other")
        return after


def template_variables(tokenizer: Any) -> frozenset[str]:
    """Variables that any of the chat templates reads and that are neither constants nor set by the tokenizer."""
    from jinja2 import TemplateError
    from jinja2.meta import find_undeclared_variables
    from transformers.utils.chat_template_utils import _compile_jinja_template  # with its extensions, which Jinja alone cannot parse

    written: Any = tokenizer.chat_template
    found: set[str] = set()
    for source in written.values() if isinstance(written, dict) else [written]:
        try:
            environment: Any = _compile_jinja_template(source).environment
        except TemplateError as error:
            raise Fatal(f"the model's chat template is not valid: {error}") from None
        found |= find_undeclared_variables(environment.parse(source))
    return frozenset(found - NOT_ARGUMENTS - tokenizer.special_tokens_map.keys())


def plain(message: ChatMessage) -> dict[str, Any]:
    """Message in the format that most templates accept."""
    return {"role": message.role, "content": message.content}


def answer_turn(dummy: Messages, messages: Sequence[ChatMessage]) -> tuple[Messages, Messages]:
    """`dummy` with tool calls in its last message, and `messages` as results of these calls, with ids and names."""
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
    """Suffix of `whole` after a reply, from the end of its turn on; empty if the template writes no end of turn.

    `before`: the rendered conversation up to that reply. `ends`: end-of-turn texts.
    """
    reply = before.rstrip()
    end = max((text for text in ends if text and reply.endswith(text)), key=len, default="")
    return whole[len(reply) - len(end) :] if end and whole.startswith(reply) else ""


def named_template(templates: object, messages: Messages) -> dict[str, str]:
    """Arguments of `apply_chat_template` that select a model's separate template for tool use, if it has one and there are calls."""
    has_calls = any(message["role"] == "tool" or message.get("tool_calls") for message in messages)
    return {"chat_template": TOOL_USE} if has_calls and isinstance(templates, dict) and TOOL_USE in templates else {}


def plain_ids(messages: Messages) -> Messages:
    """`messages` with each call id replaced by nine hexadecimal digits, and with tool names added to the results."""
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
