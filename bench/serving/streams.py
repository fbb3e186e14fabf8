"""Many streams of 50 tokens a second through gateway processes: lateness, processor time and messages of NATS.

A committed source of tokens (`paced.py`) on `replies.<gateway>` stands in for the engine, through real NATS. Lateness is from the moment
at which a token was due until the client has its event, the wait for the flush included. Processor time is that of the gateway processes,
over the events that they sent. Messages are all that NATS carried meanwhile, of whatever kind, over the source's flushes.
Beside them, what this machine charges a process for waking up between two flushes: a fixed work, at once and after pauses of that length.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import aiohttp

from bench.harness import report
from bench.harness.measures import usage
from bench.harness.measures.tap import plain_client
from bench.harness.report import ROOT
from bench.serving.http import CHAT, session
from bench.serving.stacks import POOL, TENANT, Serving, serving_stack, with_tenant
from rollout_svc.serving.replies import FLUSH_S

RATE = 50
WARM_S = 2.0
MARK = b'"content":"'
"""Prefix of the text of an event."""
ARMS = ((10, 1), (100, 1), (200, 1), (100, 2), (200, 2))
"""Streams and gateway processes."""


def run(*, small: bool) -> dict[str, Any]:
    seconds = 2.0 if small else 20.0
    arms: dict[str, Any] = {}
    for processes in (1,) if small else (1, 2):
        with serving_stack(without_model=True, gateways=processes) as serving:
            asyncio.run(_tenant(serving))
            for streams, _ in [arm for arm in ARMS if arm[1] == processes]:
                wanted = max(2, streams // 20) if small else streams
                arms[f"{streams} streams, {processes} processes"] = _arm(serving, wanted, seconds)
    of_events = {name: arm["processor_us_per_event"] for name, arm in arms.items()}
    base = of_events["100 streams, 1 processes"] or 1.0
    return {
        "source": "a committed source of tokens on replies.<gateway> in place of the engine (bench/serving/paced.py)",
        "rate": RATE,
        "seconds": seconds,
        "arms": arms,
        "processor_over_100_streams": {name: round(value / base, 3) for name, value in of_events.items()},
        "wake_up": _wake_up(100 if small else 1000),
    }


def _wake_up(times: int) -> dict[str, dict[str, float]]:
    """Processor time, in microseconds, of nothing and of a fixed work, one after another and after pauses."""
    found: dict[str, dict[str, float]] = {}
    for name, parts in (("nothing", 0), ("work", 100)):
        found[name] = {}
        for pause_s in (0.0, FLUSH_S):
            before = time.process_time()
            for _ in range(times):
                if pause_s:
                    time.sleep(pause_s)
                json.loads(json.dumps([{"number": number, "text": str(number)} for number in range(parts)]))
            found[name][f"after_{1000 * pause_s:.0f}_ms"] = round(1e6 * (time.process_time() - before) / times, 1)
    return found


async def _tenant(serving: Serving) -> None:
    async with serving.client() as client:
        await with_tenant(client)


@contextmanager
def _source(serving: Serving, counts: dict[str, int]) -> Generator[None]:
    command = [sys.executable, "-m", "bench.serving.paced", serving.nats_url, str(serving.creds), str(RATE)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield
    finally:
        process.terminate()
        said, _ = process.communicate(timeout=30)
        counts["flushes"], counts["messages"] = (int(one) for one in said.split()[-2:])


def _arm(serving: Serving, streams: int, seconds: float) -> dict[str, Any]:
    counts: dict[str, int] = {}
    with _source(serving, counts):
        found = asyncio.run(_streamed(serving, streams, seconds))
    carried = found.pop("nats_messages")
    return {
        **found,
        "messages_per_flush": round(counts["messages"] / max(1, counts["flushes"]), 2),
        "nats_messages_per_flush": round(carried / max(1, counts["flushes"]), 2),
    }


async def _streamed(serving: Serving, streams: int, seconds: float) -> dict[str, Any]:
    late: list[float] = []
    tokens = int((seconds + WARM_S) * RATE)
    gateways = [serving.process(name) for name in serving.names("gateway")]
    carried = 0

    async def count(_: object) -> None:
        nonlocal carried
        carried += 1

    counting = await plain_client(serving.nats_url, "bench-counting", serving.creds)
    await counting.subscribe(">", cb=count)
    async with session(serving.key) as http:
        running = [asyncio.create_task(_read(http, serving.urls[number % len(serving.urls)], tokens, late)) for number in range(streams)]
        await asyncio.sleep(WARM_S)
        began, before = time.monotonic(), [usage.cpu_s(one) for one in gateways]
        events = len(late)
        warm = events
        await asyncio.sleep(seconds - 1)
        took, spent = time.monotonic() - began, [usage.cpu_s(one) - first for one, first in zip(gateways, before, strict=True)]
        events = len(late) - warm
        kept = late[warm : warm + events]
        complete = await asyncio.gather(*running)
    await counting.drain()
    return {
        "streams": streams,
        "processes": len(gateways),
        "complete": sum(complete),
        "events_per_s": round(events / took),
        "lateness_ms": report.spread([1000 * one for one in kept]),
        "processor_us_per_event": round(1e6 * sum(spent) / max(1, events), 1),
        "processor_share": round(sum(spent) / took / len(gateways), 3),
        "nats_messages": carried,
    }


async def _read(http: aiohttp.ClientSession, url: str, tokens: int, late: list[float]) -> bool:
    """Notes how late each event was. Whether all tokens came."""
    body = {"model": POOL, "messages": [{"role": "user", "content": "go"}], "max_tokens": tokens, "stream": True}
    came, rest = 0, b""
    async with http.post(f"{url}{CHAT}", params={"tenant": TENANT}, json=body) as response:
        async for data in response.content.iter_any():
            now_s = time.monotonic()
            *lines, rest = (rest + data).split(b"\n\n")
            for line in lines:
                _, found, text = line.partition(MARK)
                if found and (due := text.partition(b'"')[0].split()):
                    came += len(due)
                    late.append(now_s - float(due[0]))
    return came == tokens
