"""The operator's HTTP key of a benchmark's stack."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from bench.harness.services import BenchError
from common.access.folder import open_folder
from marlaas.tenancy.keys import own_http_key
from marlaas.tenancy.recording import connected

KEY_S = 60.0


async def admin(nats_url: str, keys: Path, urls: Sequence[str]) -> str:
    """The operator's own HTTP key, once the gateways at `urls` take it: it acts for the tenant that a request names in its query.

    `keys`: folder of the stack's signing keys.
    """
    async with connected(open_folder(keys), nats_url) as operator:
        key = await own_http_key(operator)
    for url in urls:
        async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}, params={"tenant": "any"}) as door:
            await until_known(door)
    return key


async def until_known(door: httpx.AsyncClient) -> None:
    """Until the gateway has been told of the client's key. Raises: BenchError when it is not in time."""
    deadline = time.monotonic() + KEY_S
    while (await door.get("/v1/tasks")).status_code != 200:
        if time.monotonic() > deadline:
            raise BenchError("the gateway does not take the key")
        await asyncio.sleep(0.2)
