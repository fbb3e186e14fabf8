"""Replies of a version, as they are sampled."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import httpx2
from pydantic import JsonValue

from common.client_api.errors import ClientError
from marlaas.over_http.connection import Busy, Connection, Params, no_gateway

DONE = "[DONE]"
RETRIES = 3
"""Maximum times that a reply is requested again when it has no place."""
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

    def __init__(
        self,
        connection: Connection,
        params: Params,
        model: str,
        system: str | None,
        settings: Mapping[str, JsonValue],
        waits: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`waits` is called with a line that says why a reply comes later."""
        self._connection = connection
        self._waits = waits
        self._params = params
        self._body = {**settings, "model": model, "stream": True}
        self._turns: list[Turn] = [{"role": "system", "content": system}] if system else []

    @property
    def turns(self) -> Sequence[Turn]:
        return self._turns

    async def say(self, text: str) -> AsyncGenerator[Piece]:
        """The reply; text and reply are part of the conversation once it has ended. Raises: ClientError; NoAnswer."""
        turns, reply = [*self._turns, {"role": "user", "content": text}], ""
        async with aclosing(self._sampled({**self._body, "messages": turns})) as pieces:
            async for piece in pieces:
                reply += piece.text
                yield piece
        self._turns = [*turns, {"role": "assistant", "content": reply}]

    async def _sampled(self, body: Mapping[str, object]) -> AsyncGenerator[Piece]:
        """A whole reply, requested RETRIES times more while the gateway says when to ask again. Raises: as `say`."""
        for retry in range(1, RETRIES + 2):
            try:
                async with self._connection.stream("POST", "/v1/chat/completions", self._params, body=body) as response:
                    async for sent in httpx2.EventSource(response, max_event_size=None):
                        if sent.data == DONE:
                            return
                        yield self._piece(sent.data)
                raise ClientError("the reply broke off; say it again")
            except Busy as error:  # nothing of the reply has come: it is an answer of its own
                if retry > RETRIES:
                    raise
                self._waits(f"{error}; asking again in {error.after_s:.0f} s ({retry} of {RETRIES})")
                await asyncio.sleep(error.after_s * random.uniform(1, 1.25))

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
