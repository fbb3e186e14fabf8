"""Replies of a version, as they are sampled."""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
from pydantic import JsonValue

from common.door.errors import ClientError
from marlaas.over_http.connection import Connection, Params
from marlaas.over_http.refusals import no_gateway

DONE = "[DONE]"
Turn = dict[str, str]
"""`role` and `content` of a message."""


@dataclass(frozen=True)
class Piece:
    """A part of a reply."""

    text: str = ""
    thought: str = ""
    """Part of what comes before the reply, where the pool says how that is marked."""
    finish: str | None = None
    """Why the reply ends; on the last piece only."""


class Chat:
    """A conversation with one version. `settings`: of sampling, as `/v1/chat/completions` has them."""

    def __init__(self, connection: Connection, params: Params, model: str, system: str | None, settings: Mapping[str, JsonValue]) -> None:
        self._connection = connection
        self._params = params
        self._body = {**settings, "model": model, "stream": True}
        self._turns: list[Turn] = [{"role": "system", "content": system}] if system else []

    @property
    def turns(self) -> Sequence[Turn]:
        return self._turns

    async def say(self, text: str) -> AsyncGenerator[Piece]:
        """The reply; text and reply are part of the conversation once it has ended. Raises: ClientError; NoAnswer."""
        turns, reply = [*self._turns, {"role": "user", "content": text}], ""
        body = {**self._body, "messages": turns}
        async with self._connection.stream("POST", "/v1/chat/completions", self._params, body=body) as response:
            async for sent in httpx2.EventSource(response, max_event_size=None):
                if sent.data == DONE:
                    self._turns = [*turns, {"role": "assistant", "content": reply}]
                    return
                piece = self._piece(sent.data)
                reply += piece.text
                yield piece
        raise ClientError("the reply broke off; say it again")

    def _piece(self, data: str) -> Piece:
        """Raises: ClientError for an error that ends the reply."""
        found: Any = json.loads(data)
        if isinstance(error := found.get("error"), dict):
            raise ClientError(str(error.get("message")))
        try:
            choices = found["choices"]
            delta = choices[0]["delta"] if choices else {}
            finish = choices[0]["finish_reason"] if choices else None
        except (LookupError, TypeError):
            raise no_gateway(self._connection.shown) from None
        return Piece(delta.get("content") or "", delta.get("reasoning_content") or "", finish)
