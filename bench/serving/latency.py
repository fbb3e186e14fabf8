"""First token through HTTP against the engine called in its process: the same prompts, 20 requests a second, in turn.

Both engines are the same, on the same cores, and the one that is not measured is idle. Rounds alternate, so that what else the machine does
meets both. A request is sent at its moment whether earlier ones have ended or not.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench.harness import report
from bench.harness.report import ROOT
from bench.serving.http import TEXT, events, first_s, session
from bench.serving.stacks import POOL, Serving, pools_file, serving_stack, task
from common.pools import read_pools
from rollout_svc.engine.config import EngineSettings
from rollout_svc.engine.engine import Engine
from rollout_svc.engine.stream import StreamRequest, stream
from rollout_svc.text.chat import Chat

RATE = 20.0
TOKENS = 24
PROMPTS = 50
First = Callable[[int], Awaitable[float]]


def run(*, small: bool) -> dict[str, Any]:
    with serving_stack() as serving:
        return asyncio.run(_measured(serving, rounds=1 if small else 8, seconds=2.0 if small else 8.0))


async def _measured(serving: Serving, rounds: int, seconds: float) -> dict[str, Any]:
    chat = Chat.load(str(ROOT / "models" / "tiny"))
    prompts = [(await chat.conversation([{"role": "user", "content": f"What is {n} * 7?"}], [], {}, 512))[0] for n in range(PROMPTS)]
    async with serving.client() as client:
        await client.submit(task(1))
    cores = serving.process(serving.names("rollout")[0]).environ().get("MARLAAS_ROLLOUT_CORES", "")
    with pools_file() as path:
        pool = read_pools(path)[POOL]
    engine = await Engine.start(EngineSettings.of(pool, device="cpu", cores=tuple(int(one) for one in cores.split(",") if one)))
    try:
        await engine.warm_up()
        async with session(serving.key) as http:

            async def direct(number: int) -> float:
                wanted = StreamRequest(f"direct-{time.monotonic_ns()}", prompts[number % PROMPTS], TOKENS, number, chat.stop_ids, None)
                return await first_s(stream(engine, wanted))

            async def door(number: int) -> float:
                body = {"model": POOL, "prompt": prompts[number % PROMPTS], "max_tokens": TOKENS, "seed": number}
                return await first_s(events(http, serving.urls[0], TEXT, body))

            found = await _in_turn({"engine": direct, "http": door}, rounds, seconds)
    finally:
        engine.process.close()
    return _result(found, rounds, seconds)


async def _in_turn(arms: dict[str, First], rounds: int, seconds: float) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in arms}
    for first in arms.values():
        await _paced(first, 1.0)  # connections and caches
    for number in range(rounds):
        for name in list(arms) if number % 2 else list(arms)[::-1]:
            found[name] += await _paced(arms[name], seconds)
    return found


async def _paced(first: First, seconds: float) -> list[float]:
    began = time.monotonic()
    running: list[asyncio.Task[float]] = []
    for number in range(int(seconds * RATE)):
        await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))
        running.append(asyncio.ensure_future(first(number)))
    return await asyncio.gather(*running)


def _result(found: dict[str, list[float]], rounds: int, seconds: float) -> dict[str, Any]:
    ms = {name: report.spread([1000 * one for one in values]) for name, values in found.items()}
    later = {f"{name}_ms": round(ms["http"][name] - ms["engine"][name], 3) for name in ("p50", "p90", "p99")}
    count = len(found["http"])
    return {"requests_per_s": RATE, "rounds": rounds, "seconds": seconds, "requests": count, "first_token_ms": ms, "later": later}
