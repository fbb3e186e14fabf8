"""Tenants and HTTP keys of a benchmark's stack, made by the operator's commands."""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from bench.harness.services import BenchError
from common.access.folder import open_folder
from marlaas.stack.state_files import Stack
from marlaas.tenancy.keys import own_http_key
from marlaas.tenancy.recording import connected

KEY_S = 60.0


def owner(tenant: str, stack: Stack, keys: Path) -> str:
    """HTTP key of a new tenant's owner. `keys`: folder of the stack's signing keys."""
    where = ["--url", stack.nats_url, "--keys", str(keys)]
    _marlaas("tenants", "create", tenant, *where)
    made = _marlaas("keys", "create", tenant, "web", "--role", "owner", "--http", *where)
    return re.findall(r"^mk-\S+$", made, re.MULTILINE)[0]


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


def _marlaas(*arguments: str) -> str:
    command = [sys.executable, "-c", "from marlaas.cli import main; main()", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if ended.returncode:
        raise BenchError(ended.stderr)
    return ended.stdout
