"""What strangers and slow clients do to the HTTP door: `python -m bench.door`. Writes bench/results/door.json.

    python -m bench.door [--requests 300] [--connections 10000] [--seconds 20]

A stack with keys, of scheduler and gateway. First, times of answers about a task of another tenant and about one that there is not, in
turns: their medians shall not differ by more than 5 %. Then so many connections at once, as far as the limit of open files permits: a third
sends nothing, a third dribbles a header, a third a body, a byte a second. Measured are when the gateway closes them, and others' requests
meanwhile against those before.
"""

import argparse
import asyncio
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from bench.harness import report
from bench.harness.services import BenchError, local_stack, run_or_exit, without_engine
from bench.harness.tenants import owner, until_known

NAME = "door"
TASK = {"pool": "tiny", "name": "sums", "steps": 1, "environment": {"name": "calculator"}}
ROUTES = ("/v1/tasks/{}", "/v1/tasks/{}/events", "/v1/tasks/{}/versions", "/v1/fine_tuning/jobs/{}", "/v1/models/{}@1")
WARM = 20
RATE = 20
"""Requests of others a second."""
RESERVED_FILES = 200
OPENED_AT_ONCE = 200
HEAD = (
    "POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
)
PATIENCE_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=300, help="of each route and kind")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="of others' requests, before and with the connections")
    run_or_exit(NAME, partial(measure, parser.parse_args()))


def measure(options: argparse.Namespace) -> None:
    """Raises: BenchError."""
    machine = report.machine()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the services inherit it
    connections = min(options.connections, hard - RESERVED_FILES)
    with (
        tempfile.TemporaryDirectory(prefix="marlaas-keys-") as folder,
        local_stack(keys=Path(folder) / "keys", changed=without_engine) as stack,
    ):
        if stack.gateway is None:
            raise BenchError("the stack has no gateway")
        own, foreign = (owner(tenant, stack, Path(folder) / "keys") for tenant in ("acme", "globex"))
        found = asyncio.run(_measured(stack.gateway.url, own, foreign, options, connections))
    report.write(NAME, {"machine": machine, "options": vars(options), "open_files": [soft, hard], **found}, (*report.CODE, "gateway_svc"))


async def _measured(url: str, own: str, foreign: str, options: argparse.Namespace, connections: int) -> dict[str, Any]:
    async with _client(url, own) as mine, _client(url, foreign) as theirs:
        await until_known(mine)
        await until_known(theirs)
        task = (await mine.post("/v1/tasks", json=TASK)).json()["task"]
        strangers = await _strangers(theirs, task, options.requests)
        before = await _others(mine, options.seconds)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:  # their work delays no request of this process
            slow = asyncio.get_running_loop().run_in_executor(apart, _slow_clients, url, own, connections)
            during = await _others(mine, options.seconds)
            closed = await slow
        return {"foreign_and_absent": strangers, "slow": closed | {"others_before": before, "others_during": during}}


def _client(url: str, key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE_S)


async def _strangers(door: httpx.AsyncClient, task: str, requests: int) -> dict[str, Any]:
    """Route → median milliseconds of both."""
    absent = f"{task[:-1]}{'0' if task[-1] != '0' else '1'}"
    found = dict[str, Any]()
    for route in ROUTES:
        times: dict[str, list[float]] = {"foreign": [], "absent": []}
        for number in range(WARM + requests):
            order = (("foreign", task), ("absent", absent)) if number % 2 else (("absent", absent), ("foreign", task))
            for kind, name in order:
                took = await _timed(partial(door.get, route.format(name)), 404)
                times[kind] += [took] if number >= WARM else []
        medians = {kind: statistics.median(values) for kind, values in times.items()}
        found[route] = {f"{kind}_ms": round(1000 * took, 3) for kind, took in medians.items()}
        found[route]["ratio"] = round(medians["foreign"] / medians["absent"], 4)
    return found


async def _timed(send: Callable[[], Awaitable[httpx.Response]], expected: int) -> float:
    """Seconds. Raises: BenchError for another status."""
    began = time.perf_counter()
    answer = await send()
    took = time.perf_counter() - began
    if answer.status_code != expected:
        raise BenchError(f"{answer.request.url}: {answer.status_code} {answer.text[:200]}")
    return took


async def _others(door: httpx.AsyncClient, seconds: float) -> dict[str, float]:
    """Milliseconds of requests at a fixed rate."""
    ends = time.monotonic() + seconds
    sent = list[asyncio.Task[float]]()
    while time.monotonic() < ends:
        sent.append(asyncio.create_task(_timed(partial(door.get, "/v1/tasks"), 200)))
        await asyncio.sleep(1 / RATE)
    times = sorted(await asyncio.gather(*sent))
    return {
        "requests": len(times),
        "p50_ms": round(1000 * times[len(times) // 2], 2),
        "p99_ms": round(1000 * times[int(0.99 * len(times))], 2),
    }


def _slow_clients(url: str, key: str, connections: int) -> dict[str, Any]:
    """Runs in a process of its own."""
    return asyncio.run(_slow(url, key, connections))


async def _slow(url: str, key: str, connections: int) -> dict[str, Any]:
    """Seconds until each connection was closed, by what it sends."""
    head = HEAD.format(key=key)
    kinds = {"silent": ("", ""), "header": (head, "X"), "body": (f"{head}\r\n", " ")}
    address, places, began = httpx.URL(url), asyncio.Semaphore(OPENED_AT_ONCE), time.monotonic()
    names = [list(kinds)[number % len(kinds)] for number in range(connections)]
    took = await asyncio.gather(*(_closed(address, places, *kinds[name]) for name in names), return_exceptions=True)
    found: dict[str, Any] = {"connections": connections, "took_s": round(time.monotonic() - began, 1)}
    for kind in kinds:
        times = sorted(one for name, one in zip(names, took, strict=True) if name == kind and isinstance(one, float))
        failed = sum(name == kind and not isinstance(one, float) for name, one in zip(names, took, strict=True))
        shown = {"closed": len(times), "failed": failed}
        found[kind] = shown | ({"median_s": round(times[len(times) // 2], 1), "max_s": round(times[-1], 1)} if times else {})
    return found


async def _closed(address: httpx.URL, places: asyncio.Semaphore, first: str, then: str) -> float:
    """Seconds from the connection until the server closes it."""
    async with places:
        reader, writer = await asyncio.open_connection(address.host, address.port)
    began = time.monotonic()
    writer.write(first.encode())
    reading = asyncio.create_task(reader.read())
    try:
        while not (await asyncio.wait([reading], timeout=1.0))[0]:
            if time.monotonic() - began > PATIENCE_S:
                raise TimeoutError("the server keeps it open")
            writer.write(then.encode())
        return time.monotonic() - began
    finally:
        reading.cancel()
        writer.close()


if __name__ == "__main__":
    main()
