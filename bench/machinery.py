"""Costs of the machinery without computation: `python -m bench.machinery`. Writes bench/results/machinery.json.

- Turns a second through NATS, codec, environment service and scheduler, with an engine, environments and a trainer that take no
  time; and the latency that the machinery adds to a turn at half that load.
- Per trajectory: processor time of each service, PostgreSQL statements, write-ahead log and bytes kept.
- Memory per waiting task and per trajectory in flight.
- Time of one admission with 10, 100, 1,000 and 5,000 running tasks.
- Time to record a step of a task after 10, 1,000 and 10,000 steps.
"""

import argparse
import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg

from bench.harness import report
from bench.harness.load.injected import Times, Work
from bench.harness.load.standins import Trace, at_work
from bench.harness.load.tasks import all_finished, scheduler_knows, submission
from bench.harness.measures import timeline
from bench.harness.measures.scheduler_costs import decisions, past
from bench.harness.services import Services, postgres, run_or_exit, services
from common.bus import Bus

NOTHING = Times(0.0, 0.0, 0.0)
STATEMENT = re.compile(r"LOG:  (?:execute [^:]*|statement): (.*)")
WAL_BYTES = "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"
TABLE_BYTES = "SELECT sum(pg_total_relation_size(name::regclass)) FROM unnest(ARRAY['groups', 'trajectories', 'ledger']) name"
"""Bytes of groups, trajectories and the ledger, indexes included."""
AIMED_TURNS_PER_S = 2000.0
BEGIN_AND_END = 1.2
"""Requested rate as a multiple of the mean rate, which is lower while tasks begin and end."""


def main() -> None:
    options = arguments()
    work = {name: value for name, value in vars(options).items() if name not in ("parts", "name")}
    earlier = report.read(options.name)
    result = (earlier if earlier.get("options") == work else {}) | {"machine": report.machine(), "options": work}
    with postgres() as (folder, server):
        for part in options.parts:
            result[part] = PARTS[part](folder, server, options)
            print(f"{part}: {result[part]}", flush=True)
    print(f"written: {report.write(options.name, result)}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--parts",
        type=lambda text: text.split(","),
        default=list(PARTS),
        help=f"some of {', '.join(PARTS)}; others keep an earlier run's values",
    )
    parser.add_argument("--name", default="machinery", help="name of the result")
    parser.add_argument("--tasks", type=int, default=32)
    parser.add_argument("--steps", type=int, default=8, help="steps of each task")
    parser.add_argument("--size", type=int, default=8, help="members of a group")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--places", type=int, default=256)
    parser.add_argument("--runs", type=int, default=3, choices=(1, 3, 5, 7), help="runs of each throughput")
    parser.add_argument("--counts", type=lambda text: [int(part) for part in text.split(",")], default=[10, 100, 1000, 5000])
    return parser.parse_args()


def throughput(folder: Path, server: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Maximum rate, and the latency added to a turn at half that rate; with the members of a group together, and apart.

    Together: all members of a group end each turn at once, and share one message; at half the rate, groups differ in their times.
    Apart: each turn takes its own time, so members share few messages. Each is the median of several runs.
    """
    bench = _Throughput(folder, server, options)
    full = bench.fastest(NOTHING)
    apart = bench.fastest(bench.at_rate(full["turns_per_s"], alike=False))
    return {
        "full": full,
        "half": bench.delayed(bench.at_rate(full["turns_per_s"] / 2, alike=True)),
        "apart": apart,
        "apart_half": bench.delayed(bench.at_rate(apart["turns_per_s"] / 2, alike=False)),
    }


def aim(folder: Path, server: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Latency added to a turn at half of the intended rate, members together."""
    bench = _Throughput(folder, server, options)
    return bench.delayed(bench.at_rate(AIMED_TURNS_PER_S / 2 * BEGIN_AND_END, alike=True))


class _Throughput:
    """Runs of the same work at different rates."""

    def __init__(self, folder: Path, server: Any, options: argparse.Namespace) -> None:
        self._folder, self._server, self._options = folder, server, options
        self._work = Work(options.tasks, options.steps, 2, options.size, options.turns, options.places)

    def at_rate(self, turns_per_s: float, *, alike: bool) -> Times:
        in_flight = min(self._options.places * 1.5, self._work.tasks * self._work.groups_per_step * self._work.group_size)
        between_turns_s = in_flight / turns_per_s
        return Times(between_turns_s / 2, between_turns_s / 2, 0.0, alike=alike)

    def fastest(self, times: Times) -> dict[str, Any]:
        return middle([self._run(times) for _ in range(self._options.runs)], lambda run: run["turns_per_s"])

    def delayed(self, times: Times) -> dict[str, Any]:
        return middle([self._run(times) for _ in range(self._options.runs)], lambda run: run["added_ms"]["p50"])

    def _run(self, times: Times) -> dict[str, Any]:
        with services(self._folder, self._server, self._options.places, {}) as running:
            return asyncio.run(_played(running, times, self._work))


def middle(runs: Sequence[dict[str, Any]], judged_by: Callable[[dict[str, Any]], float]) -> dict[str, Any]:
    """The median run of an odd number, with every run's value under `all`."""
    ordered = sorted(runs, key=judged_by)
    return ordered[len(ordered) // 2] | {"all": [judged_by(run) for run in ordered]}


async def _played(running: Services, times: Times, work: Work) -> dict[str, Any]:
    names = [f"t{number:04}" for number in range(work.tasks)]
    trace = Trace()
    async with await Bus.connect(running.nats_url, "bench", creds=running.creds) as bus, at_work(bus, times, work.places, trace):
        await scheduler_knows(running, {"rollout", "env"})
        cpu_before, own_before, wal_before = running.cpu_s(), time.process_time(), _number(running, WAL_BYTES)
        began = time.time()
        await asyncio.gather(*(bus.publish(submission(name, work)) for name in names))
        async with asyncio.timeout(300):
            ended = max((await all_finished(bus, set(names))).values())
        cpu = {name: after - cpu_before[name] for name, after in running.cpu_s().items()}
        cpu["sampler and trainer"] = time.process_time() - own_before
    trajectories = work.tasks * work.steps * work.groups_per_step * work.group_size
    first = min(span.asked_at for span in trace.sampled)
    added = timeline.added_latencies(trace)
    return {
        "turns": len(trace.sampled),
        "turns_per_s": round(len(trace.sampled) / (ended - first), 1),
        "seconds": round(ended - began, 2),
        "added_ms": {name: round(1000 * report.percentile(added, share), 2) for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))},
        "cpu_ms_per_turn": {name: round(1000 * seconds / len(trace.sampled), 3) for name, seconds in cpu.items()},
        "wal_bytes_per_trajectory": round((_number(running, WAL_BYTES) - wal_before) / trajectories),
        "rows_bytes_per_trajectory": round(_number(running, TABLE_BYTES) / trajectories),
    }


def _number(running: Services, query: str) -> int:
    with psycopg.connect(running.postgres_url) as connection:
        return int(connection.execute(query.encode()).fetchone()[0])  # pyright: ignore


def statements(folder: Path, server: Any, options: argparse.Namespace) -> dict[str, Any]:
    """SQL statements per trajectory and per step, counted in the server's log, and the most frequent ones."""
    work = Work(options.tasks, options.steps, 2, options.size, options.turns, options.places)
    del folder, server
    with postgres("-c", "log_statement=all") as (logged, logging), services(logged, logging, options.places, {}) as running:
        log = logged / "postgres.log"
        before = log.stat().st_size
        asyncio.run(_played(running, NOTHING, work))
        text = log.read_bytes()[before:].decode(errors="replace")
    found = Counter(_shape(statement) for statement in STATEMENT.findall(text))
    steps = work.tasks * work.steps
    return {
        "per_step": round(found.total() / steps, 1),
        "per_trajectory": round(found.total() / (steps * work.groups_per_step * work.group_size), 2),
        "most": [f"{count / steps:.1f} a step: {shape}" for shape, count in found.most_common(12)],
    }


def _shape(statement: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"\$\d+(, \$\d+)*", "…", statement))[:110]


def memory(folder: Path, server: Any, options: argparse.Namespace) -> dict[str, Any]:
    """KiB that each service grows by, per running task without capacity, and per trajectory in flight."""
    del options
    few, many = 10, 410
    with services(folder, server, 1, {}) as running:
        idle = asyncio.run(_memory_with_tasks(running, few, many))
    work = Work(8, 2, 4, 64, 1, 2048)
    with services(folder, server, work.places, {}) as running:
        flying = asyncio.run(_memory_in_flight(running, work))
    return {"kib_per_task": idle, "kib_per_trajectory_in_flight": flying}


async def _memory_with_tasks(running: Services, few: int, many: int) -> dict[str, float]:
    """Memory per waiting task: without a sampler, tasks are accepted and wait."""
    work = Work(many, 1, 1, 2, 1, 1)
    names = [f"t{number:04}" for number in range(many)]
    async with await Bus.connect(running.nats_url, "bench", creds=running.creds) as bus:
        await scheduler_knows(running, {"env"})
        before: dict[str, int] = {}
        for part in (names[:few], names[few:]):
            await asyncio.gather(*(bus.publish(submission(name, work)) for name in part))
            wanted = few if part[0] == names[0] else many
            await _until(running, "SELECT count(*) FROM tasks WHERE state = 'running'", wanted)
            before = before or running.memory_bytes()
        return {name: round((size - before[name]) / (many - few) / 1024, 2) for name, size in running.memory_bytes().items()}


async def _memory_in_flight(running: Services, work: Work) -> dict[str, float]:
    """Memory per trajectory in flight, while each waits in its environment."""
    names = [f"t{number:04}" for number in range(work.tasks)]
    trace = Trace()
    async with await Bus.connect(running.nats_url, "bench", creds=running.creds) as bus:
        trajectories = work.tasks * work.groups_per_step * work.group_size
        async with at_work(bus, Times(0.0, 20.0, 0.0), work.places, trace):
            await scheduler_knows(running, {"rollout", "env"})
            before = running.memory_bytes()
            await asyncio.gather(*(bus.publish(submission(name, work)) for name in names))
            async with asyncio.timeout(60):
                while len(trace.sampled) < trajectories:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await asyncio.sleep(1)
            return {name: round((size - before[name]) / trajectories / 1024, 2) for name, size in running.memory_bytes().items()}


async def _until(running: Services, query: str, wanted: int) -> None:
    async with asyncio.timeout(180), await psycopg.AsyncConnection.connect(running.postgres_url, autocommit=True) as connection:
        while (await (await connection.execute(query.encode())).fetchone() or (0,))[0] < wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


PARTS = {"throughput": throughput, "aim": aim, "statements": statements, "memory": memory, "decisions": decisions, "past": past}


if __name__ == "__main__":
    run_or_exit("bench.machinery", main)
