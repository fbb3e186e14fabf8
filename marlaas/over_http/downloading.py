"""A download that goes on where it broke off."""

import asyncio
import time
from collections.abc import AsyncGenerator

from common.door.errors import ClientError, NoAnswer
from marlaas.over_http.connection import PAUSE, Connection, Params
from marlaas.over_http.refusals import Lost


async def downloaded(connection: Connection, path: str, params: Params, size: int, digest: str) -> AsyncGenerator[bytes]:
    """`size` bytes of what has this digest, not compared with it yet. Requests are repeated for as long as the connection's patience.

    Raises: ClientError when it is something else; NoAnswer.
    """
    received, attempt, progressed = 0, 0, time.monotonic()
    while received < size:
        before = received
        try:
            async for part in _parts(connection, path, params, received, f'"{digest}"'):
                received += len(part)
                if received > size:
                    raise ClientError(f"more than {size} bytes came for {path}; fetch it again")
                yield part
        except (Lost, NoAnswer):
            if received == before and time.monotonic() - progressed > connection.patience_s:
                raise
        if received > before:
            attempt, progressed = 0, time.monotonic()
        attempt += 1
        if received < size:
            await asyncio.sleep(PAUSE.pause_s(attempt))


async def _parts(connection: Connection, path: str, params: Params, first: int, etag: str) -> AsyncGenerator[bytes]:
    """What comes from the byte `first` on. Raises: ClientError when it is of another blob; Lost when it breaks off."""
    headers = {"Range": f"bytes={first}-", "If-Range": etag} if first else {}
    async with connection.stream("GET", path, params, headers=headers) as response:
        if response.headers.get("etag") != etag:
            raise ClientError(f"{path.rsplit('/', 1)[0]} is something else now; fetch it again")
        skipped = 0 if response.status_code == 206 else first
        async for part in response.aiter_bytes():
            if wanted := part[skipped:]:
                yield wanted
            skipped = max(skipped - len(part), 0)
