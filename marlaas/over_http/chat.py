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
"""Maximum retries of a reply for which the gateway has no capacity."""
Turn = dict[str, str]
"""`role` and `content` of a message."""


@dataclass(frozen=True)
class Piece:
    """A part of a reply."""

    text: str = ""
    thought: str = ""
    """Part of the reasoning before the reply, if the pool defines its markers."""
    finish: str | None = None
    """Reason why the reply ends; on the last piece only."""


class Chat:
    """A conversation with one version. `settings`: sampling parameters of `/v1/chat/completions`."""

    def __init__(
        self,
        connection: Connection,
        params: Params,
        model: str,
        system: str | None,
        settings: Mapping[str, JsonValue],
        waits: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`waits` is called with the reason if a reply is delayed."""
        self._connection = connection
        self._waits = waits
        self._params = params
        self._body = {**settings, "model": model, "stream": True}
        self._turns: list[Turn] = [{"role": "system", "content": system}] if system else []

    @property
    def turns(self) -> Sequence[Turn]:
        return self._turns

    async def say(self, text: str) -> AsyncGenerator[Piece]:
        """Send a turn; yields the reply. Both become part of the conversation when the reply has ended. Raises: ClientError; NoAnswer."""
        turns, reply = [*self._turns, {"role": "user", "content": text}], ""
        async with aclosing(self._sampled({**self._body, "messages": turns})) as pieces:
            async for piece in pieces:
                reply += piece.text
                yield piece
        self._turns = [*turns, {"role": "assistant", "content": reply}]

    async def _sampled(self, body: Mapping[str, object]) -> AsyncGenerator[Piece]:
        """A complete reply, retried up to RETRIES times while the gateway asks to retry later. Raises: as `say`."""
        for retry in range(1, RETRIES + 2):
            try:
                async with self._connection.stream("POST", "/v1/chat/completions", self._params, body=body) as response:
                    async for sent in httpx2.EventSource(response, max_event_size=None):
                        if sent.data == DONE:
                            return
                        yield self._piece(sent.data)
                raise ClientError("the reply broke off; say it again")
            except Busy as error:  # before any part of the reply, so the response as a whole is an error
                if retry > RETRIES:
                    raise
                self._waits(f"{error}; asking again in {error.after_s:.0f} s ({retry} of {RETRIES})")
                await asyncio.sleep(error.after_s * random.uniform(1, 1.25))

    def _piece(self, data: str) -> Piece:
        """The piece in an event's data. Raises: ClientError for an error that ends the reply."""
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
