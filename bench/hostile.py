"""Whether one sender's bodies stop a gateway for others: `python -m bench.hostile`. Writes bench/results/hostile.json.

    python -m bench.hostile [--bodies 200] [--seconds 20] [--routes PATH …]

A gateway answers before a real NATS, PostgreSQL and scheduler. Tenants ask it for their tasks, each for itself, at a steady pace, first
alone, then while a process of the lowest priority sends bodies of 1 MiB that would be dear to read: nested, wide, long numbers, each field
with each kind of value, TOML in all forms, forms and uploads; so many to each route, four at once. First each body comes from a sender of
its own, so that every one is read: measured are the turns of the gateway's loop in its processor time, and its memory. Then all come from
one sender, whom its share of the processor bounds: measured are the others' times. Exit status 1 where a turn takes more than 50 ms,
memory grows by more than 64 MiB, an answer is none that a client can act on, or the others' 99th percentile beside one sender is more than
half as long again.
"""

import argparse
import asyncio
import multiprocessing
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

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
FEW = 100
"""Fewer bodies to each route say nothing about times: answers and memory alone are judged."""
READY_S = 180.0
UPLOAD, FORM = ("POST", "/v1/files"), ("POST", "/ui/new/toml")


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
    routes = [route for route in (*ROUTES, UPLOAD, FORM) if route[1] in (options.routes or [route[1]])]
    found = dict[str, Any]()
    async with _deployment(database_url, nats_url):
        with _gateway(nats_url, stalls) as (address, process):
            await _ready(address)
            others, sender = Others(address), Sender(options.bodies)
            asking = [asyncio.create_task(others.ask(number)) for number in range(OTHERS)]
            await asyncio.sleep(5)
            for method, path in routes:
                found[f"{method} {path}"] = await _tried(others, process, stalls, (method, path), sender, options.seconds)
                print(f"{method} {path}: {found[f'{method} {path}']}", flush=True)
            for one in asking:
                one.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
    worst = {name: max(one[name] for one in found.values()) for name in ("stall_ms", "growth_mib", "ratio")}
    return {"routes": found, "worst": worst, "broken": _broken(found, others.statuses)}


def _broken(found: dict[str, Any], others: Counter[int]) -> list[str]:
    wrong = [f"other tenants were answered {status}" for status in others if status != 200]
    for route, one in found.items():
        if one["bodies"] >= FEW:
            wrong += [f"{route}: a turn of {one['stall_ms']} ms"] if one["stall_ms"] > MAX_STALL_MS else []
            wrong += [f"{route}: others waited {one['ratio']} times as long"] if one["ratio"] > MAX_RATIO else []
        wrong += [f"{route}: memory grew by {one['growth_mib']} MiB"] if one["growth_mib"] > MAX_GROWTH_MIB else []
        wrong += [f"{route}: answers {status}" for status in (*one["answers"], *one["answers_to_one_sender"]) if int(status) >= 500]
    return wrong


async def _tried(
    others: Others, process: psutil.Process, stalls: Path, route: tuple[str, str], sender: "Sender", alone_s: float
) -> dict[str, Any]:
    bodies = await sender.prepare(route)
    others.p99_ms()
    await asyncio.sleep(alone_s)
    alone_ms, used = others.p99_ms(), sum(process.cpu_times()[:2])
    watching = asyncio.create_task(_peak(process, peak := [process.memory_info().rss]))
    began, before = time.time(), peak[0]
    sent = await sender.send(others.address, route, one_sender=False)
    seconds, used, beside_each_ms = time.time() - began, sum(process.cpu_times()[:2]) - used, others.p99_ms()
    one_began, of_one = time.monotonic(), await sender.send(others.address, route, one_sender=True)
    await asyncio.sleep(max(0.0, one_began + alone_s - time.monotonic()))  # as many questions as before
    watching.cancel()
    beside_ms = others.p99_ms()
    turns = [line.split() for line in (await asyncio.to_thread(stalls.read_text)).splitlines()]
    stall_ms, at_s = max(
        ((1000 * float(processor_s), float(at_s)) for at_s, processor_s, _ in turns if began <= float(at_s)), default=(0, 0)
    )
    return {
        "bodies": bodies,
        "answers": Counter(str(one.status) for one in sent),
        "answers_to_one_sender": Counter(str(one.status) for one in of_one),
        "seconds": round(seconds, 1),
        "processor_s": round(used, 2),
        "stall_ms": round(stall_ms, 1),
        "sent_when_it_stalled": [one.name for one in (*sent, *of_one) if one.began_s <= at_s <= one.ended_s],
        "growth_mib": round((peak[0] - before) / 2**20, 1),
        "others_p99_ms": {"alone": alone_ms, "beside_one_sender": beside_ms, "beside_as_many_senders": beside_each_ms},
        "ratio": round(beside_ms / alone_ms, 2),
    }


async def _peak(process: psutil.Process, found: list[int]) -> None:
    """Keep the most that the process has had, until cancelled."""
    while True:
        found[0] = max(found[0], process.memory_info().rss)
        await asyncio.sleep(0.02)


class Sent(NamedTuple):
    name: str
    """Of the body."""
    status: int
    """0 where the connection was ended before all was sent."""
    began_s: float
    ended_s: float


class Sender:
    """A process of its own, so that its work delays no other's request."""

    def __init__(self, bodies: int) -> None:
        self._bodies = bodies
        self._apart = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), os.nice, (19,))

    async def prepare(self, route: tuple[str, str]) -> int:
        """Make the bodies for a route; returns how many."""
        return await asyncio.get_running_loop().run_in_executor(self._apart, _prepare, route, self._bodies)

    async def send(self, address: str, route: tuple[str, str], *, one_sender: bool) -> "list[Sent]":
        return await asyncio.get_running_loop().run_in_executor(self._apart, _send, address, route, one_sender)


_prepared: list[Hostile] = []
"""In the sender's process."""


def _prepare(route: tuple[str, str], count: int) -> int:
    bodies = hostile_bodies(*route) if route in ROUTES else _forms(route[1])
    _prepared[:] = spread(bodies, count)
    return len(_prepared)


def _forms(path: str) -> list[Hostile]:
    return [one for one in hostile_forms() if ("multipart" in one.media_type) == (path == UPLOAD[1])]


def _send(address: str, route: tuple[str, str], one_sender: bool) -> list[Sent]:
    return asyncio.run(_sent(address, route, one_sender=one_sender))


async def _sent(address: str, route: tuple[str, str], *, one_sender: bool) -> list[Sent]:
    import httpx

    found, left = list[Sent](), list(enumerate(_prepared))

    async def send() -> None:
        while left:
            number, one = left.pop()
            began_s, status = time.time(), 0
            async with httpx.AsyncClient(base_url=address, timeout=120) as client:
                try:
                    tenant = {} if route == FORM else {"tenant": "hostile" if one_sender else f"hostile{number}"}
                    sent = client.build_request(route[0], route[1], content=one.body, headers={"Content-Type": one.media_type})
                    sent.url = sent.url.copy_merge_params(tenant)
                    status = (await client.send(sent)).status_code
                except httpx.TransportError:  # refused before the body was sent
                    pass
            found.append(Sent(one.name, status, began_s, time.time()))

    await asyncio.gather(*(send() for _ in range(AT_ONCE)))
    return found


@asynccontextmanager
async def _deployment(database_url: str, nats_url: str) -> AsyncGenerator[None]:
    from scheduler_svc.base.database import Database
    from scheduler_svc.tenancy.question import Sources
    from scheduler_svc.verbs.asks import Asks

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
