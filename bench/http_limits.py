"""Whether limits of HTTP hold over several gateways, and what they cost: `python -m bench.http_limits`.

    python -m bench.http_limits [--gateways 1,2,4] [--seconds 60] [--requests 600] [--tokens 5400]

So many gateway processes answer before a real NATS and PostgreSQL. Two tenants send, to all of them in turn: one asks for pools, twice as
often as its requests a minute allow; one samples replies of TOKENS_EACH tokens, twice as many as its tokens a minute allow. A stand-in of
the sampler answers at once, through NATS. What was granted within a minute is compared with the limit. The cost is that of counting a
request in one account, alone, as fast as it goes. Writes bench/results/http-limits.json.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import numpy as np

from bench.harness import report
from bench.harness.measures.scheduler_costs import migrated_database
from bench.harness.services import BenchError, nats, postgres, run_or_exit
from common import streams
from common.bus import Bus, Delivery, Outgoing, Slots
from common.messages import Served, ServedDelta, ServeRequest
from common.pools import Pool
from common.pools.pool import Serving
from marlaas.stack import servers

NAME = "http-limits"
POOL = "tiny"
PROMPT, SAMPLED = 7, 20
TOKENS_EACH = PROMPT + SAMPLED
OVERLOAD = 2.0
"""Requests that are sent, as a multiple of those that fit."""
ALLOWED_ERROR = 0.1
READY_S = 180.0
COST_REQUESTS = 5_000
WINDOW_S = 60.0
TENANTS = """
INSERT INTO tenants (id) VALUES ('asks{run}'), ('samples{run}');
INSERT INTO limits (tenant, requests_per_minute) VALUES ('asks{run}', {requests});
INSERT INTO limits (tenant, tokens_per_minute) VALUES ('samples{run}', {tokens})
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateways", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2, 4])
    parser.add_argument("--seconds", type=float, default=WINDOW_S, help="of sending, within which all of a minute's requests are sent")
    parser.add_argument("--requests", type=int, default=600, help="a minute")
    parser.add_argument("--tokens", type=int, default=200 * TOKENS_EACH, help="a minute")
    options = parser.parse_args()
    machine = report.machine()
    with postgres() as (folder, (port, _)), nats(folder) as nats_url:
        found = asyncio.run(_measured(migrated_database(port, "http_limits"), nats_url, options))
    path = report.write(NAME, {"machine": machine, "seconds": options.seconds, **found})
    print(f"{found}\nwritten: {path}")
    wrong = {key: share for key, each in found["gateways"].items() for share in each["share"].values() if abs(share - 1) > ALLOWED_ERROR}
    if wrong:
        raise BenchError(f"granted ÷ limit, by gateways: {wrong}")


async def _measured(database_url: str, nats_url: str, options: argparse.Namespace) -> dict[str, Any]:
    async with _deployment(database_url, nats_url) as (bus, database):
        cost, found = await _cost(bus), dict[str, Any]()
        for gateways in options.gateways:
            await _tenants(database, gateways, options)
            with _gateways(nats_url, gateways) as addresses:
                found[str(gateways)] = await _run(addresses, gateways, options)
    limits = {"requests": options.requests, "tokens": options.tokens}
    return {"limits_per_minute": limits, "gateways": found, "cost": cost}


@asynccontextmanager
async def _deployment(database_url: str, nats_url: str) -> AsyncGenerator[tuple[Bus, Any]]:
    """What answers gateways: the scheduler's asks, and a stand-in of the sampler."""
    from scheduler_svc.ask.asks import Asks
    from scheduler_svc.ask.question import Sources
    from scheduler_svc.store.database import Database

    pools = {POOL: Pool(model="models/tiny", context_tokens=512, max_rank=16, serving=Serving())}
    async with await Bus.connect(nats_url, "bench") as bus, await Database.connect(database_url) as database:
        await bus.declare()
        runners = [
            asyncio.create_task(Asks(bus, Sources.of(bus, database, pools)).run()),
            asyncio.create_task(bus.consume(streams.rollout_serves(POOL), partial(_answer, bus), Slots(64))),
        ]
        try:
            yield bus, database
        finally:
            for runner in runners:
                runner.cancel()
            await asyncio.gather(*runners, return_exceptions=True)


async def _answer(bus: Bus, delivery: Delivery) -> AsyncGenerator[Outgoing]:
    """The whole reply at once."""
    request = delivery.read(ServeRequest)
    delta = ServedDelta(
        request=request.request,
        attempt=request.attempt,
        number=0,
        ids=np.zeros(SAMPLED, dtype="<i4").tobytes(),
        text="a" * SAMPLED,
        finish="length",
        prompt_tokens=PROMPT,
        cached_tokens=0,
        fingerprint="bench",
    )
    await bus.requests.tell(streams.replies(request.gateway), Served(replica="bench", deltas=[delta]))
    return
    yield  # makes this an async generator, as handlers are


async def _tenants(database: Any, run: int, options: argparse.Namespace) -> None:
    from sqlalchemy import text

    async with database.transaction() as tx:
        for statement in TENANTS.format(run=run, requests=options.requests, tokens=options.tokens).split(";"):
            await tx.connection.execute(text(statement))


@contextmanager
def _gateways(nats_url: str, count: int) -> Generator[list[str]]:
    ports = [servers.free_port() for _ in range(count)]
    environment = {**os.environ, "MARLAAS_NATS_URL": nats_url}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "gateway_svc"],
            env={**environment, "MARLAAS_GATEWAY_PORT": str(port), "MARLAAS_LOG_LEVEL": "warning"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for port in ports
    ]
    try:
        yield [f"http://127.0.0.1:{port}" for port in ports]
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(30)


async def _run(addresses: list[str], run: int, options: argparse.Namespace) -> dict[str, Any]:
    """Send for so many seconds; what was granted, and how fast it was answered."""
    import httpx

    async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=200)) as client:
        async with asyncio.timeout(READY_S):
            for address in addresses:
                while not await _is_ready(client, address):  # noqa: ASYNC110  another process
                    await asyncio.sleep(0.1)
        ask = {"tenant": f"asks{run}"}
        body = {"model": POOL, "prompt": [5] * PROMPT, "max_tokens": SAMPLED}
        sampling = {"tenant": f"samples{run}"}
        counts = [int(options.requests * OVERLOAD), int(options.tokens / TOKENS_EACH * OVERLOAD)]
        asked, sampled = await asyncio.gather(
            _sent(counts[0], options.seconds, lambda n: client.get(f"{addresses[n % len(addresses)]}/v1/pools", params=ask)),
            _sent(
                counts[1],
                options.seconds,
                lambda n: client.post(f"{addresses[n % len(addresses)]}/v1/completions", params=sampling, json=body),
            ),
        )
    granted = {"requests": asked["granted"], "tokens": sampled["granted"] * TOKENS_EACH}
    share = {name: round(granted[name] / limit, 4) for name, limit in (("requests", options.requests), ("tokens", options.tokens))}
    return {"sent": counts, "granted": granted, "share": share, "granted_ms": {"requests": asked["ms"], "tokens": sampled["ms"]}}


async def _is_ready(client: Any, address: str) -> bool:
    import httpx

    try:
        return (await client.get(f"{address}/readyz")).status_code == 200
    except httpx.HTTPError:
        return False


async def _sent(count: int, seconds: float, send: Callable[[int], Awaitable[Any]]) -> dict[str, Any]:
    """Send evenly; each answer is awaited beside the others. Raises: BenchError for an answer that is neither granted nor too many."""
    began, statuses, times = time.monotonic(), list[int](), list[float]()

    async def one(number: int) -> None:
        await asyncio.sleep(max(0.0, began + number * seconds / count - time.monotonic()))
        at = time.perf_counter()
        status = (await send(number)).status_code
        statuses.append(status)
        if status == 200:
            times.append(1000 * (time.perf_counter() - at))

    await asyncio.gather(*map(one, range(count)))
    if set(statuses) - {200, 429}:
        raise BenchError(f"answers: {sorted(set(statuses))}")
    ms = {name: round(report.percentile(times, share), 1) for name, share in (("p50", 0.5), ("p99", 0.99))}
    return {"granted": statuses.count(200), "ms": ms}


async def _cost(bus: Bus) -> dict[str, float]:
    """Of one request in one account, whose limit is far away."""
    from gateway_svc.limits.account import Account
    from gateway_svc.limits.window import Allowed, Amounts

    account, allowed, one = Account(bus, "tenant.cost", "bench"), Allowed(requests=10_000_000), Amounts(requests=1)
    began, processor = time.perf_counter(), time.process_time()
    for _ in range(COST_REQUESTS):
        await account.take(one, allowed)
    spent, processor = time.perf_counter() - began, time.process_time() - processor
    await account.close()
    return {
        "requests": COST_REQUESTS,
        "us_each": round(1e6 * spent / COST_REQUESTS, 1),
        "processor_us_each": round(1e6 * processor / COST_REQUESTS, 1),
        "exchanges_per_1000": round(1000 * account.exchanges / COST_REQUESTS, 1),
    }


if __name__ == "__main__":
    run_or_exit("bench.http_limits", main)
