"""Whether one sender's bodies stop a gateway for others: `python -m bench.hostile`. Writes bench/results/hostile.json.

    python -m bench.hostile [--bodies 200] [--seconds 20] [--routes PATH …]

A gateway answers before a real NATS, PostgreSQL and scheduler. Tenants ask it for their tasks, each for itself, at a steady pace, first
alone, then while another sends bodies of 1 MiB that would be dear to read: nested, wide, long numbers, each field with each kind of value,
TOML in all forms, forms and uploads; so many to each route, four at once. Measured are the turns of the gateway's loop in its processor
time, its memory, and the others' times. Exit status 1 where a turn takes more than 50 ms, memory grows by more than 64 MiB, an answer is
none that a client can act on, or the others' 99th percentile is more than half as long again.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.harness import report
from bench.harness.load.hostile import ROUTES, Hostile, hostile_bodies, hostile_forms, spread
from bench.harness.measures.scheduler_costs import migrated_database
from bench.harness.services import BenchError, nats, postgres, run_or_exit
from common.bus import Bus
from common.pools import Pool
from common.pools.pool import Serving
from marlaas.stack import servers

NAME = "hostile"
MEASURES = ("common", "gateway_svc", "scheduler_svc", "bench/hostile.py", "bench/harness")
OTHERS = 4
ASKS_A_SECOND = 10
"""Of each other tenant."""
AT_ONCE = 4
MAX_STALL_MS, MAX_GROWTH_MIB, MAX_RATIO = 50, 64, 1.5
READY_S = 180.0
UPLOAD, LOGIN = ("POST", "/v1/files"), ("POST", "/ui/login")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bodies", type=int, default=200, help="to each route")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the others alone, before each route's bodies")
    parser.add_argument("--routes", nargs="+", metavar="PATH", help="these alone, and write no results")
    options = parser.parse_args()
    machine = report.machine()
    with postgres() as (folder, (port, _)), nats(folder) as nats_url:
        found = asyncio.run(_measured(migrated_database(port, "hostile"), nats_url, folder / "stalls", options))
    print(found["worst"])
    if not options.routes:
        print(f"written: {report.write(NAME, {'machine': machine, **found}, MEASURES)}")
    if found["broken"]:
        raise BenchError("; ".join(found["broken"]))


@dataclass
class Others:
    """Tenants that ask, and how long they waited."""

    address: str
    times_ms: list[float] = field(default_factory=list[float])
    statuses: Counter[int] = field(default_factory=Counter[int])

    async def ask(self, number: int) -> None:
        """Until cancelled."""
        import httpx

        async with httpx.AsyncClient(base_url=self.address, timeout=120) as client:
            while True:
                began = time.perf_counter()
                answer = await client.get("/v1/tasks", params={"tenant": f"other{number}"})
                self.times_ms.append(1000 * (time.perf_counter() - began))
                self.statuses[answer.status_code] += 1
                await asyncio.sleep(max(0.0, began + 1 / ASKS_A_SECOND - time.perf_counter()))

    def p99_ms(self) -> float:
        found = report.percentile(self.times_ms, 0.99)
        self.times_ms.clear()
        return round(found, 1)


async def _measured(database_url: str, nats_url: str, stalls: Path, options: argparse.Namespace) -> dict[str, Any]:
    routes = [route for route in (*ROUTES, UPLOAD, LOGIN) if route[1] in (options.routes or [route[1]])]
    found = dict[str, Any]()
    async with _deployment(database_url, nats_url):
        with _gateway(nats_url, stalls) as (address, process):
            await _ready(address)
            others = Others(address)
            asking = [asyncio.create_task(others.ask(number)) for number in range(OTHERS)]
            await asyncio.sleep(5)
            for method, path in routes:
                bodies = hostile_bodies(method, path) if (method, path) in ROUTES else _forms(path)
                chosen = spread(bodies, options.bodies)
                del bodies
                found[f"{method} {path}"] = await _tried(others, process, stalls, (method, path), chosen, options.seconds)
                print(f"{method} {path}: {found[f'{method} {path}']}", flush=True)
            for one in asking:
                one.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
    worst = {name: max(one[name] for one in found.values()) for name in ("stall_ms", "growth_mib", "ratio")}
    return {"routes": found, "worst": worst, "broken": _broken(found, others.statuses)}


def _forms(path: str) -> list[Hostile]:
    return [one for one in hostile_forms() if ("multipart" in one.media_type) == (path == UPLOAD[1])]


def _broken(found: dict[str, Any], others: Counter[int]) -> list[str]:
    wrong = [f"other tenants were answered {status}" for status in others if status != 200]
    for route, one in found.items():
        wrong += [f"{route}: a turn of {one['stall_ms']} ms"] if one["stall_ms"] > MAX_STALL_MS else []
        wrong += [f"{route}: memory grew by {one['growth_mib']} MiB"] if one["growth_mib"] > MAX_GROWTH_MIB else []
        wrong += [f"{route}: others waited {one['ratio']} times as long"] if one["ratio"] > MAX_RATIO else []
        wrong += [f"{route}: answers {status}" for status in one["answers"] if int(status) >= 500]
    return wrong


async def _tried(
    others: Others, process: psutil.Process, stalls: Path, route: tuple[str, str], bodies: Sequence[Hostile], alone_s: float
) -> dict[str, Any]:
    others.p99_ms()
    await asyncio.sleep(alone_s)
    alone_ms, before = others.p99_ms(), process.memory_info().rss
    began, used, peak = time.time(), sum(process.cpu_times()[:2]), before
    answers, left = Counter[str](), list(bodies)

    async def send() -> None:
        nonlocal peak
        import httpx

        while left:
            one = left.pop()
            async with httpx.AsyncClient(base_url=others.address, timeout=120) as client:
                try:
                    tenant = {} if route == LOGIN else {"tenant": "hostile"}
                    sent = client.build_request(route[0], route[1], content=one.body, headers={"Content-Type": one.media_type})
                    sent.url = sent.url.copy_merge_params(tenant)
                    answers[str((await client.send(sent)).status_code)] += 1
                except httpx.TransportError:  # refused before the body was sent
                    answers["0"] += 1
            peak = max(peak, process.memory_info().rss)

    await asyncio.gather(*(send() for _ in range(AT_ONCE)))
    await asyncio.sleep(max(0.0, began + alone_s - time.time()))  # as many questions as before
    ended = time.time()
    turns = [line.split() for line in (await asyncio.to_thread(stalls.read_text)).splitlines()]
    long_ms = [1000 * float(processor_s) for at_s, processor_s, _ in turns if began <= float(at_s) <= ended]
    during_ms = others.p99_ms()
    return {
        "bodies": len(bodies),
        "answers": dict(answers),
        "seconds": round(ended - began, 1),
        "processor_s": round(sum(process.cpu_times()[:2]) - used, 2),
        "stall_ms": round(max(long_ms, default=0.0), 1),
        "growth_mib": round((peak - before) / 2**20, 1),
        "others_p99_ms": {"alone": alone_ms, "during": during_ms},
        "ratio": round(during_ms / alone_ms, 2),
    }


@asynccontextmanager
async def _deployment(database_url: str, nats_url: str) -> AsyncGenerator[None]:
    from scheduler_svc.ask.asks import Asks
    from scheduler_svc.ask.question import Sources
    from scheduler_svc.store.database import Database

    pools = {"tiny": Pool(model="models/tiny", context_tokens=512, max_rank=16, serving=Serving())}
    async with await Bus.connect(nats_url, "bench") as bus, await Database.connect(database_url) as database:
        await bus.declare()
        answering = asyncio.create_task(Asks(bus, Sources.of(bus, database, pools)).run())
        try:
            yield
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)


@contextmanager
def _gateway(nats_url: str, stalls: Path) -> Generator[tuple[str, psutil.Process]]:
    port = servers.free_port()
    settings = {"MARLAAS_NATS_URL": nats_url, "MARLAAS_GATEWAY_PORT": str(port), "MARLAAS_LOG_LEVEL": "warning"}
    settings |= {"MARLAAS_GATEWAY_SUBMIT_TIMEOUT_S": "0.2", "MARLAAS_GATEWAY_FIRST_TOKEN_S": "0.2"}
    command = [sys.executable, "-m", "bench.harness.measures.stalls", str(stalls)]
    with (stalls.parent / "gateway.log").open("w") as log:
        process = subprocess.Popen(command, env={**os.environ, **settings}, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}", psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


async def _ready(address: str) -> None:
    import httpx

    async with asyncio.timeout(READY_S), httpx.AsyncClient() as client:
        while True:
            try:
                if (await client.get(f"{address}/readyz")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    run_or_exit("bench.hostile", main)
