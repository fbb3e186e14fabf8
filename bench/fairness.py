"""Shares of two tenants, one with a task and one with twenty: `python -m bench.fairness`. Writes bench/results/fairness.json.

- `tokens`, `environments`, `trainer`: one of the three is what all wait for. Over the period after the first seconds, what each tenant got
  of it, against its weight.
- `intake`: one tenant sends jobs as fast as it is let, and the seconds until another's is accepted meanwhile.

The sampler takes injected times and its tokens are made up; the trainer takes injected times in the real trainer's order
(`common/fairness`). Scheduler, NATS, PostgreSQL, environments and their worker processes are the real ones.
"""

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

from bench.harness import report
from bench.harness.load.injected import Times
from bench.harness.load.standins import POOL, REPLY_TOKENS, Trace, at_work
from bench.harness.load.tasks import scheduler_knows
from bench.harness.services import Services, postgres, run_or_exit, services
from common import streams
from common.bus import Bus, Outgoing
from common.errors import QueueFull
from common.messages import SubmitTask
from common.streams import MAX_WAITING_JOBS
from marlaas.client import Client

ONE, MANY = "one", "many"
"""The tenants: with one task, and with several."""
WEIGHTS = ((1, 1), (1, 3), (3, 1))
"""Weights of the two."""
PLACES = 16
RESOURCES = {
    "tokens": Times(0.1, 0.0, 0.0),
    "environments": Times(0.0, 0.0, 0.0),
    "trainer": Times(0.0, 0.0, 0.5),
}
"""What is waited for → injected times."""
CALL_S = 0.04
"""Seconds of a call in a worker process."""
WORKERS = {"MARLAAS_ENV_WORKERS": "4"}
SENDERS = 64
"""Jobs that the busy tenant has on their way at once."""
PAUSE_S = 0.1
"""Its pause after a refusal."""
MAX_SENDING_S = 240.0
REST_S = 2.0
"""The other's pause between two jobs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = [*RESOURCES, "intake"]
    parser.add_argument("--parts", type=lambda text: text.split(","), default=parts, help=f"some of {', '.join(parts)}; others stay")
    parser.add_argument("--tasks", type=int, default=20, help="tasks of the tenant that has several")
    parser.add_argument("--warm", type=float, default=10.0, help="seconds before the period")
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds of the period")
    parser.add_argument("--jobs", type=int, default=10_000)
    options = parser.parse_args()
    given = {name: value for name, value in vars(options).items() if name != "parts"}
    earlier = report.read("fairness")
    result: dict[str, Any] = (earlier if earlier.get("options") == given else {}) | {"machine": report.machine(), "options": given}
    with postgres() as (folder, server):
        for part in options.parts:
            result[part] = intake(folder, server, options) if part == "intake" else shares(part, folder, server, options)
            result["measured"] = {**result.get("measured", {}), part: report.commit()}
            print(f"{part}: {result[part]}", flush=True)
    print(f"written: {report.write('fairness', result)}")


def shares(resource: str, folder: Path, server: Any, options: argparse.Namespace) -> list[dict[str, Any]]:
    """What the two tenants got of the resource, for each pair of weights."""
    found: list[dict[str, Any]] = []
    for one, many in WEIGHTS:
        record = folder / f"{resource}-{one}-{many}"
        record.touch()
        record.chmod(0o666)
        with services(folder, server, PLACES, WORKERS) as running:
            got = asyncio.run(_period(running, resource, {ONE: one, MANY: many}, record, options))
        found.append(compared(got, {ONE: one, MANY: many}))
    return found


def compared(got: dict[str, float], weights: dict[str, int]) -> dict[str, Any]:
    """Amounts and shares by tenant; `off`: by how much of its due the tenant farthest from it is off."""
    total, weight = sum(got.values()), sum(weights.values())
    off = {tenant: got[tenant] / total / (weights[tenant] / weight) - 1 for tenant in weights}
    return {
        "weights": weights,
        "got": {tenant: round(got[tenant], 2) for tenant in weights},
        "share": {tenant: round(got[tenant] / total, 4) for tenant in weights},
        "off": round(max(map(abs, off.values())), 4),
    }


async def _period(running: Services, resource: str, weights: dict[str, int], record: Path, options: argparse.Namespace) -> dict[str, float]:
    trace = Trace()
    async with (
        await Bus.connect(running.nats_url, "bench", creds=running.creds) as bus,
        at_work(bus, RESOURCES[resource], PLACES, trace, train_in_turn=False),
    ):
        await scheduler_knows(running, {"rollout", "env"})
        _give_weights(running, weights)
        for tenant, tasks in ((ONE, 1), (MANY, options.tasks)):
            for number in range(tasks):
                await bus.publish(_job(tenant, f"{tenant}-{number}", resource, record))
        await _all_run(running, 1 + options.tasks)
        await asyncio.sleep(options.warm)
        begins = time.time()
        await asyncio.sleep(options.seconds)
        ends = time.time()
    got = Counter[str]({ONE: 0.0, MANY: 0.0})  # type: ignore[arg-type]
    for tenant, at, amount in _amounts(resource, trace, record):
        if begins <= at < ends:
            got[tenant] += amount  # type: ignore[assignment]
    return {tenant: float(amount) for tenant, amount in got.items()}


def _amounts(resource: str, trace: Trace, record: Path) -> Iterator[tuple[str, float, float]]:
    """(tenant, when, how much) of all that was served."""
    if resource == "tokens":
        yield from ((span.task.partition("-")[0], span.ended_at, REPLY_TOKENS) for span in trace.sampled)
    elif resource == "trainer":
        yield from ((span.task.partition("-")[0], span.ended_at, span.ended_at - span.started_at) for span in trace.trained)
    else:
        for line in record.read_text().splitlines():
            tenant, at, seconds = line.split()
            yield tenant, float(at), float(seconds)


def _job(tenant: str, task: str, resource: str, record: Path) -> Outgoing:
    """A task without end, whose work never waits for its own step where it need not."""
    occupying = {"seconds": CALL_S, "tenant": tenant, "record": str(record)}
    environments = {"environments": {"name": "bench.harness.load.occupying:OccupyingEnvironment", "options": occupying}}
    waiting = {"name": "bench.harness.load.waiting:WaitingEnvironment", "options": {"turns": 1}}
    small = {"group_size": 2, "groups_per_step": 1, "max_staleness": 3}
    spec: dict[str, Any] = {
        "name": task,
        "tenant": tenant,
        "pool": POOL,
        "steps": 100_000,
        "environment": environments.get(resource, waiting),
        "sampling": {"max_tokens": 16},
        "limits": {"max_turns": 1, "max_prompt_tokens": 64, "max_reply_tokens": 16, "episode_timeout_s": 3600},
        "algorithm": small if resource == "trainer" else {"group_size": 4, "groups_per_step": 4, "max_staleness": 3},
    }
    return Outgoing(streams.job("submit", tenant), SubmitTask(task=task, tenant=tenant, spec=spec), f"submit:{task}")


def _give_weights(running: Services, weights: dict[str, int]) -> None:
    with psycopg.connect(running.postgres_url) as connection:
        for tenant, weight in weights.items():
            connection.execute("INSERT INTO tenants (id, weight) VALUES (%s, %s)", (tenant, weight))


async def _all_run(running: Services, wanted: int) -> None:
    async with asyncio.timeout(60), await psycopg.AsyncConnection.connect(running.postgres_url, autocommit=True) as connection:
        query = "SELECT count(*) FROM tasks WHERE state = 'running'"
        while (await (await connection.execute(query)).fetchone() or (0,))[0] < wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def intake(folder: Path, server: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Jobs of one tenant in a burst, and as fast as it is let; meanwhile those of another, which also sends some before."""
    with services(folder, server, PLACES, WORKERS) as running:
        return asyncio.run(_taken(running, options.jobs))


async def _taken(running: Services, jobs: int) -> dict[str, Any]:
    async with (
        await Bus.connect(running.nats_url, "bench", creds=running.creds) as bus,
        Client.connect(running.nats_url, ONE, creds=running.creds) as client,
    ):
        await scheduler_knows(running, {"env"})
        quiet = [await _accepted_s(client, f"quiet-{number}") for number in range(10)]
        burst, burst_s = await _burst(bus, jobs)
        began = time.monotonic()
        sending = asyncio.create_task(_as_let(bus, jobs))
        busy: list[float] = []
        while not sending.done():
            busy.append(await _accepted_s(client, f"busy-{len(busy)}"))
            await asyncio.wait((sending,), timeout=REST_S)
        taken, refused = await sending
        sent_s = time.monotonic() - began
        await _all_run_within(running, len(quiet) + len(busy) + burst + taken)
        return {
            "max_waiting": MAX_WAITING_JOBS,
            "burst": {"sent": jobs, "taken": burst, "refused": jobs - burst, "seconds": round(burst_s, 1)},
            "as_let": {"taken": taken, "refused": refused, "seconds": round(sent_s, 1), "jobs_per_s": round(taken / sent_s, 1)},
            "all_accepted_s": round(time.monotonic() - began, 1),
            "accepted_s": {"quiet": report.spread(quiet), "busy": report.spread(busy)},
            "samples": {"quiet": len(quiet), "busy": len(busy)},
        }


async def _accepted_s(client: Client, task: str) -> float:
    began = time.monotonic()
    message = _job(ONE, task, "tokens", Path()).message
    assert isinstance(message, SubmitTask)
    await client.submit(message.spec, task)
    return time.monotonic() - began


async def _burst(bus: Bus, jobs: int) -> tuple[int, float]:
    """Jobs that were taken of so many sent without a pause, and the seconds until each was answered."""
    began = time.monotonic()

    async def send(number: int) -> bool:
        with suppress(QueueFull):
            await bus.publish(_job(MANY, f"burst-{number}", "tokens", Path()))
            return True
        return False

    taken = await _by_several([send(number) for number in range(jobs)])
    return sum(taken), time.monotonic() - began


async def _as_let(bus: Bus, jobs: int) -> tuple[int, int]:
    """Send each until it is taken, for MAX_SENDING_S at most; returns how many were taken, and the refusals."""
    ends = time.monotonic() + MAX_SENDING_S
    taken = refused = 0

    async def send(number: int) -> int:
        nonlocal taken, refused
        while time.monotonic() < ends:
            try:
                await bus.publish(_job(MANY, f"let-{number}", "tokens", Path()))
            except QueueFull:
                refused += 1
                await asyncio.sleep(PAUSE_S)
            else:
                taken += 1
                break
        return 0

    await _by_several([send(number) for number in range(jobs)])
    return taken, refused


async def _by_several(sends: Sequence[Any]) -> list[int]:
    """Results of all, SENDERS of them at once."""
    left, results = iter(sends), list[int]()

    async def sender() -> None:
        for send in left:
            results.append(await send)

    await asyncio.gather(*(sender() for _ in range(SENDERS)))
    return results


async def _all_run_within(running: Services, wanted: int) -> None:
    async with asyncio.timeout(300):
        while True:
            with suppress(TimeoutError):
                return await _all_run(running, wanted)


if __name__ == "__main__":
    run_or_exit("bench.fairness", main)
