"""Clients that go at random moments: how soon the engine is rid of their requests, whether its cache is free, and what is booked.

The engine and the sampler's own serving run in this process, where the engine can be asked whether any block of its KV cache is in use;
gateway, scheduler, NATS and PostgreSQL are processes of their own. Half of the clients read a stream, with log-probabilities, so that they
can count the tokens that they were given; the others wait for whole answers, and get nothing.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp

from bench.harness import report
from bench.harness.report import ROOT
from bench.serving.http import CHAT, Answer, ask, events, session
from bench.serving.overheard import Overheard, overhearing
from bench.serving.stacks import POOL, Serving, pools_file, serving_stack, with_tenant
from bench.serving.standins.source import replica
from common.pools import read_pools
from rollout_svc.chat import Chat
from rollout_svc.engine import Engine
from rollout_svc.engine_config import EngineSettings
from rollout_svc.engine_stream import stream

TOKENS = 200
LOOK_S = 0.6
"""Seconds after a client has gone in which its request is looked for."""
SETTLED_S = 20.0


@dataclass
class Cut:
    request: str
    """Empty: it was cut before its answer began."""
    streamed: bool
    after_s: float
    delivered: int
    rid_s: float


def run(*, small: bool) -> dict[str, Any]:
    with serving_stack(without_model=True) as serving:
        return asyncio.run(_measured(serving, 6 if small else 200))


async def _measured(serving: Serving, count: int) -> dict[str, Any]:
    async with serving.client() as client:
        await with_tenant(client)
    rng = random.Random(7)
    async with _engine() as engine, overhearing(serving.nats_url, serving.creds) as heard, session(serving.key) as http:
        chat = Chat.load(str(ROOT / "models" / "tiny"))
        async with replica(serving.nats_url, serving.creds, chat, partial(stream, engine)) as has_requests:
            whole_s = await _time_of_one(http, serving.urls[0])
            free_before = await engine._llm.reset_prefix_cache()  # pyright: ignore[reportPrivateUsage]

            async def is_busy() -> bool:
                """`reset_prefix_cache` refuses while a request holds a block."""
                return has_requests() or not await engine._llm.reset_prefix_cache()  # pyright: ignore[reportPrivateUsage]

            cuts = [
                await _cut(http, serving.urls[0], rng.uniform(0, whole_s), streamed=number % 2 == 0, is_busy=is_busy)
                for number in range(count)
            ]
            free_after = await engine._llm.reset_prefix_cache()  # pyright: ignore[reportPrivateUsage]
        await asyncio.sleep(1.0 if count < 50 else SETTLED_S / 4)
    return {
        "disconnects": count,
        "whole_answer_s": round(whole_s, 3),
        "before_the_answer_began": sum(not one.request for one in cuts),
        "rid_ms": report.spread([1000 * one.rid_s for one in cuts]),
        "cache_free_before_and_after": [bool(free_before), bool(free_after)],
        "ledger": _ledger(serving, heard, cuts),
    }


@asynccontextmanager
async def _engine() -> AsyncGenerator[Engine]:
    with pools_file() as path:
        pool = read_pools(path)[POOL]
    engine = await Engine.start(EngineSettings.of(pool, device="cpu"))
    try:
        await engine.warm_up()
        yield engine
    finally:
        engine.close()


def _body(streamed: bool) -> dict[str, Any]:
    messages = [{"role": "user", "content": "What is 3 * 7?"}]
    bias = {str(token): -100 for token in Chat.load(str(ROOT / "models" / "tiny")).stop_ids}
    return {"model": POOL, "messages": messages, "max_tokens": TOKENS, "logprobs": True, "logit_bias": bias, "stream": streamed}


async def _time_of_one(http: aiohttp.ClientSession, url: str) -> float:
    await ask(http, url, CHAT, _body(streamed=True))
    began = time.monotonic()
    await ask(http, url, CHAT, _body(streamed=True))
    return time.monotonic() - began


async def _cut(http: aiohttp.ClientSession, url: str, after_s: float, *, streamed: bool, is_busy: Any) -> Cut:
    found, delivered = Answer(), 0

    async def read() -> None:
        nonlocal delivered
        if not streamed:
            await ask(http, url, CHAT, _body(streamed=False), found)
            return
        async with aclosing(events(http, url, CHAT, _body(streamed=True), found)) as stream_of:
            async for event in stream_of:
                for choice in event.get("choices", ()):
                    delivered += len((choice.get("logprobs") or {}).get("content", ()))

    reading = asyncio.create_task(read())
    await asyncio.wait([reading], timeout=after_s)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    gone = time.monotonic()
    seen = gone
    while (now := time.monotonic()) < gone + LOOK_S or seen > now - 0.1:
        if await is_busy():
            seen = time.monotonic()
        await asyncio.sleep(0.002)
    return Cut(found.request, streamed, after_s, delivered, seen - gone)


def _ledger(serving: Serving, heard: Overheard, cuts: list[Cut]) -> dict[str, Any]:
    """`beyond`: tokens booked above those delivered. A whole answer that is cut is booked as far as it was sampled."""
    booked = {str(request): int(str(sampled)) for request, sampled in serving.rows("SELECT request, sampled_tokens FROM served_requests")}
    streamed = [one for one in cuts if one.streamed and one.request]
    beyond = {one.request: booked.get(f"{one.request}n0", 0) - one.delivered for one in streamed}
    return {
        "requests_booked": len(booked),
        "streams": len(streamed),
        "delivered": sum(one.delivered for one in streamed),
        "booked": sum(booked.get(f"{one.request}n0", 0) for one in streamed),
        "largest_beyond": max(beyond.values(), default=0),
        "below": sum(one < 0 for one in beyond.values()),
        "beyond_a_flush": sum(tokens > heard.largest(f"{request}n0") for request, tokens in beyond.items()),
        "more_than_sampled": sum(tokens > heard.sampled(request) for request, tokens in booked.items()),
    }
