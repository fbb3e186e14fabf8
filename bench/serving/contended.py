"""First tokens of one tenant while something else wants the same engine: alone, and beside each of three neighbours.

    burst      another tenant asks a thousand times at once, from a process of its own
    rollouts   tasks of twice as many adapters as the engine has places for, whose prompts fill its cache; a loaded version is asked
    reader     of a hundred streams one is not read: the others' times between events

Times are the client's, from the request to the first event with a token. Beside a burst, and alone before it, every other request comes
by a new connection.
"""

import asyncio
import itertools
import json
import multiprocessing
import socket
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from bench.harness import report
from bench.harness.report import ROOT
from bench.serving.http import TEXT, Answer, ask, events, first_s, session
from bench.serving.stacks import POOL, TENANT, Serving, serving_stack, task, trained
from common.pools import read_pools
from marlaas.client import Client

OTHER = "globex"
TOKENS = 16
BURSTS = 3
PAUSE_S = 0.1
"""Pause between two requests of the tenant that is measured."""
STREAM_TOKENS = 200
WIDE = {"n": 8, "max_tokens": 400, "logprobs": 20}
"""An answer of several MB, more than the sockets' buffers take."""
WARM = 5
FULL_CACHE_GIB = 0.0125
"""6,500 tokens: less than rollouts that fill all seats need."""
ADAPTERS = read_pools(ROOT / "pools.toml")[POOL].adapters
"""Places of the engine for rollouts."""

Clients = Sequence[aiohttp.ClientSession]


def run(*, small: bool) -> dict[str, Any]:
    count = 5 if small else 200
    with serving_stack() as serving:
        found = asyncio.run(_beside_tenant(serving, count, *((20, 4) if small else (1_000, 100))))
    with serving_stack(kv_cache_gib=FULL_CACHE_GIB) as serving:
        return {"requests": count, **found, "rollouts": asyncio.run(_beside_rollouts(serving, count, 1 if small else ADAPTERS))}


async def _beside_tenant(serving: Serving, count: int, burst: int, streams: int) -> dict[str, Any]:
    async with serving.client() as client, session(serving.key) as http:
        for tenant in (TENANT, OTHER):
            await client.wait(await client.submit(task(1).model_copy(update={"tenant": tenant})))
        url, body = serving.urls[0], {"model": POOL, "prompt": "What is 6 * 7?", "max_tokens": TOKENS}
        async with _new_connections(serving.key) as fresh:
            both = (http, fresh)
            await _spaced(both, url, body, WARM, OTHER)
            alone = await _spaced(both, url, body, count, OTHER)
            beside, answered = await _beside_burst(both, url, serving.key, body, burst)
        return {"burst": answered | _compared(alone, beside), "reader": await _beside_reader(http, url, serving.key, body, streams)}


async def _beside_rollouts(serving: Serving, count: int, places: int) -> dict[str, Any]:
    async with serving.client() as client, session(serving.key) as http:
        url, body = serving.urls[0], {"model": f"{await trained(client, 1)}@1", "prompt": "What is 6 * 7?", "max_tokens": TOKENS}
        await _spaced((http,), url, body, WARM)
        alone = await _spaced((http,), url, body, count)
        tasks = [await client.submit(task(1000, seed=10 + number)) for number in range(2 * places)]
        await _until_adapters(client, tasks, places)
        return {"tasks": len(tasks)} | _compared(alone, await _spaced((http,), url, body, count))


async def _until_adapters(client: Client, tasks: list[str], places: int) -> None:
    """Until more tasks have an adapter than the engine has places for."""
    while sum([(await client.status(one)).version > 0 for one in tasks]) <= places:  # noqa: ASYNC110
        await asyncio.sleep(1.0)


def _compared(alone: list[float], beside: list[float]) -> dict[str, Any]:
    ms = {name: report.spread([1000 * one for one in values]) for name, values in (("alone", alone), ("beside", beside))}
    ratio = {name: round(ms["beside"][name] / ms["alone"][name], 2) for name in ("p50", "p99")}
    return {"first_token_ms": ms, "ratio": ratio, "max_s": round(max(beside), 3)}


async def _first(http: aiohttp.ClientSession, url: str, body: dict[str, Any], tenant: str) -> float:
    return await first_s(events(http, url, TEXT, body, tenant=tenant))


async def _spaced(clients: Clients, url: str, body: dict[str, Any], count: int, tenant: str = TENANT) -> list[float]:
    """The clients take turns."""
    found: list[float] = []
    for number in range(count):
        found.append(await _first(clients[number % len(clients)], url, {**body, "seed": number}, tenant))
        await asyncio.sleep(PAUSE_S)
    return found


async def _beside_burst(clients: Clients, url: str, key: str, body: dict[str, Any], burst: int) -> tuple[list[float], dict[str, Any]]:
    """Bursts one after another, so that there are about as many times as alone."""
    found, counts, took_s, loop = list[float](), Counter[str](), list[float](), asyncio.get_running_loop()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:  # its work delays no request of this process
        await loop.run_in_executor(apart, _import)
        for _ in range(BURSTS):
            running = loop.run_in_executor(apart, _burst, url, key, {**body, "max_tokens": 4 * TOKENS}, burst)
            began = time.monotonic()
            while not running.done():
                found.append(await _first(clients[len(found) % len(clients)], url, {**body, "seed": len(found)}, OTHER))
                await asyncio.sleep(PAUSE_S)
            counts.update(await running)
            took_s.append(round(time.monotonic() - began, 1))
    answered = {"at_once": burst, "bursts": BURSTS, "took_s": took_s, "complete": counts.pop("complete", 0), "others": dict(counts)}
    return found, answered | {"requests_beside": len(found)}


def _import() -> None:
    """Returns once the process has its modules."""


def _burst(url: str, key: str, body: dict[str, Any], burst: int) -> dict[str, int]:
    """Runs in a process of its own. Outcomes → answers."""
    return asyncio.run(_asked_at_once(url, key, body, burst))


async def _asked_at_once(url: str, key: str, body: dict[str, Any], burst: int) -> dict[str, int]:
    async with session(key) as http:
        answers: list[Answer] = await asyncio.gather(*(ask(http, url, TEXT, {**body, "seed": number}) for number in range(burst)))
    return dict(Counter("complete" if one.is_complete else f"{one.status} {one.error or 'cut'}" for one in answers))


def _new_connections(key: str) -> aiohttp.ClientSession:
    return session(key, aiohttp.TCPConnector(limit=0, force_close=True))


async def _beside_reader(http: aiohttp.ClientSession, url: str, key: str, body: dict[str, Any], streams: int) -> dict[str, Any]:
    """Two rounds beside a wide answer, which is read in the first, and left in its socket in the second."""
    found = dict[str, dict[str, float]]()
    for name in ("read", "unread"):
        wide = asyncio.create_task(_wide(url, key, {**body, **WIDE}, is_read=name == "read"))
        answers = [Answer() for _ in range(streams)]
        asked = {**body, "max_tokens": STREAM_TOKENS, "stream": True}
        await asyncio.gather(*(ask(http, url, TEXT, {**asked, "seed": number}, one) for number, one in enumerate(answers)))
        wide.cancel()
        gaps = [later - sooner for one in answers for sooner, later in itertools.pairwise(one.came_s)]
        found[name] = report.spread([1000 * gap for gap in gaps])
    return {"streams": streams, "between_events_ms": found, "ratio_p99": round(found["unread"]["p99"] / found["read"]["p99"], 2)}


async def _wide(url: str, key: str, body: dict[str, Any], *, is_read: bool) -> None:
    """With a socket that takes little, so that what is unread fills the gateway's buffer."""
    to, text = urlsplit(url), json.dumps({**body, "stream": True}).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((to.hostname, to.port))
    reader, writer = await asyncio.open_connection(sock=connection, limit=4096)
    head = f"POST {TEXT}?tenant={TENANT} HTTP/1.1\r\nHost: {to.netloc}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Authorization: Bearer {key}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n".encode() + text)
    try:
        if is_read:
            while await reader.read(4096):
                pass
        await asyncio.Event().wait()
    finally:
        writer.close()
