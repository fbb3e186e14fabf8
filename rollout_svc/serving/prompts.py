"""Prompts of served requests as tokens; a request has a conversation, a text or tokens."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from common.formats import strict_json
from common.messages import Failure, ServedCall, ServedMessage, ServeRequest
from common.tool_calls import Thoughts
from rollout_svc.text.chat import Chat, PromptTooLong, UnusablePrompt


class Refused(Exception):
    """A request that cannot be answered; its text is shown to the user."""

    def __init__(self, failure: Failure, reason: str) -> None:
        super().__init__(reason)
        self.failure: Failure = failure


@dataclass(frozen=True)
class Prompt:
    ids: list[int]
    max_tokens: int
    """Maximum tokens of the whole reply."""
    begins_inside: bool = False
    """Whether the prompt ends inside the model's reasoning."""


async def prompt_of(chat: Chat, request: ServeRequest, context: int, thoughts: tuple[str, str] | None) -> Prompt:
    """Tokenize a request's prompt and check it against the context length. Raises: Refused."""
    wanted = request.sampling.max_tokens
    begins_inside = False
    try:
        match request:
            case ServeRequest(messages=list() as messages, text=None, ids=None):
                said = [_message(message) for message in messages]
                ids, rendered = await chat.conversation(said, request.tools, request.template, context)
                await _check_names(chat, request, said, rendered, context)
                begins_inside = Thoughts.after(rendered, thoughts).begins_inside
            case ServeRequest(messages=None, text=str() as text, ids=None):
                ids = await chat.plain(text, context)
            case ServeRequest(messages=None, text=None, ids=bytes() as written) if len(written) % 4 == 0:
                ids = np.frombuffer(written, dtype="<i4").tolist()
            case _:
                raise Refused("invalid", "a request has either messages, or a text, or tokens")
    except PromptTooLong as size:
        raise Refused("context_length_exceeded", _too_long(str(size), wanted, context)) from None
    except UnusablePrompt as error:
        raise Refused("invalid", str(error)) from None
    if not ids or not all(0 <= token < chat.vocabulary for token in ids):
        raise Refused("invalid", f"a prompt has at least one token, each from 0 to {chat.vocabulary - 1}")
    if strange := [token for token in request.sampling.logit_bias if not 0 <= token < chat.vocabulary]:
        raise Refused("invalid", f"logit_bias: {strange[0]} is no token's id; the model has the ids 0 to {chat.vocabulary - 1}")
    if len(ids) + (wanted or 1) > context:
        raise Refused("context_length_exceeded", _too_long(f"{len(ids)} tokens", wanted, context))
    return Prompt(ids, wanted or context - len(ids), begins_inside)


async def _check_names(chat: Chat, request: ServeRequest, said: list[dict[str, Any]], rendered: str, context: int) -> None:
    """Raises: Refused for a message name that the chat template does not render."""
    named = next((place for place, message in enumerate(said) if "name" in message), None)
    if named is None:
        return
    unnamed = [{field: value for field, value in message.items() if field != "name"} for message in said]
    if (await chat.conversation(unnamed, request.tools, request.template, context))[1] == rendered:
        raise Refused("invalid", f"messages[{named}].name: the model's chat template shows no names; leave it out")


def _too_long(size: str, wanted: int | None, context: int) -> str:
    return f"the prompt has {size}, {wanted or 1} may be sampled, and the context is {context} tokens"


def _message(message: ServedMessage) -> dict[str, Any]:
    """Message as chat templates expect it: unset fields are left out, except `content`."""
    found: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.name is not None:
        found["name"] = message.name
    if message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        found["tool_calls"] = [_call(call) for call in message.tool_calls]
    return found


def _call(call: ServedCall) -> dict[str, Any]:
    """Tool call with parsed arguments, as templates expect. Raises: Refused if they are not a JSON object."""
    try:
        arguments: object = strict_json.read(call.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise Refused("invalid", f"the arguments of the tool call {call.id} are not a JSON object")
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
