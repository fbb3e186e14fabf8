"""A client of the HTTP door that costs little, and notes when each event came."""

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from bench.serving.stacks import TENANT

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
IDLE_S = 5.0
"""Maximum seconds that a connection stays open unused: the gateway closes it after 10, perhaps when the next request is on its way."""
BODY_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_read=120)


@dataclass
class Answer:
    """What one client was told."""

    status: int = 0
    finish: str | None = None
    error: str = ""
    """Code of an error, whether the answer or an event of its stream."""
    came_s: list[float] = field(default_factory=list[float])
    """When events with content came, on the monotonic clock."""

    @property
    def is_complete(self) -> bool:
        return self.finish is not None and not self.error


def session(key: str, connector: aiohttp.TCPConnector | None = None) -> aiohttp.ClientSession:
    """`connector`: default: one that keeps each connection for IDLE_S."""
    connector = connector or aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S)
    return aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}, connector=connector, timeout=BODY_TIMEOUT)


async def ask(
    client: aiohttp.ClientSession, url: str, path: str, body: dict[str, Any], found: Answer | None = None, *, tenant: str = TENANT
) -> Answer:
    """The whole answer, streamed where the body says so, into `found` as it comes. A broken connection is the error `cut`."""
    found = found or Answer()
    try:
        if body.get("stream"):
            async for event in events(client, url, path, body, found, tenant=tenant):
                _take(found, event, "delta" if path == CHAT else "")
        else:
            async with client.post(f"{url}{path}", params={"tenant": tenant}, json=body) as response:
                _begin(found, response)
                _take(found, await response.json(), "message" if path == CHAT else "")
    except (aiohttp.ClientError, ConnectionError, TimeoutError):
        found.error = found.error or "cut"
    return found


async def events(
    client: aiohttp.ClientSession, url: str, path: str, body: dict[str, Any], found: Answer | None = None, *, tenant: str = TENANT
) -> AsyncGenerator[dict[str, Any]]:
    """Events of a stream but the last, `[DONE]`; of an error its body."""
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with client.post(f"{url}{path}", params={"tenant": tenant}, json=asked) as response:
        _begin(found or Answer(), response)
        if response.status != 200:
            yield await response.json()
            return
        async for line in response.content:
            if line.startswith(b"data: ") and line != b"data: [DONE]\n":
                yield json.loads(line[6:])


async def first_s(arriving: AsyncIterator[object]) -> float:
    """Seconds until the first of what arrives, all of which is taken."""
    began, first = time.monotonic(), 0.0
    async for one in arriving:
        assert not (isinstance(one, dict) and "error" in one), one
        first = first or time.monotonic() - began
    return first


def _begin(found: Answer, response: aiohttp.ClientResponse) -> None:
    found.status = response.status


def _take(found: Answer, event: dict[str, Any], part: str) -> None:
    if "error" in event:
        found.error = str(event["error"].get("code"))
        return
    for choice in event["choices"]:
        said = choice[part] if part else choice
        if said.get("content" if part else "text"):
            found.came_s.append(time.monotonic())
        found.finish = choice.get("finish_reason") or found.finish
