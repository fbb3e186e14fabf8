"""What many tenants with limits cost: `python -m bench.limits`. Writes bench/results/limits.json.

    python -m bench.limits [--counts 10,1000] [--asks 400]

A database with so many tenants, each with a running task, its past, a budget, and a value of its own for every limit that admission or
asks look at. Measured are admissions of one group, each rolled back, and asks of the tenants in turn through NATS, one at a time, each
counted in its tenant's rate. The p90 of the last count is compared with that of the first. Counts take turns, several rounds of each.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from typing import Any

from bench.harness import report
from bench.harness.measures.scheduler_costs import admission_times, analyze, migrated_database, run_tasks
from bench.harness.questions import questions_of
from bench.harness.services import nats, postgres, run_or_exit
from common.bus import Bus, NoResponder
from common.messages import (
    AskTasks,
    Message,
)
from common.streams import ask

NAME = "limits"
ROUNDS = 3
WARM = 20
"""Asks before those that are measured: statements are compiled, connections opened."""
LIMITED = """
INSERT INTO limits (tenant, asks_per_minute, max_sequences, max_pool_sequences, max_pool_tokens, max_tokens, max_stored_bytes, max_adapters)
SELECT id, 1000000, 1000000, 1000000, 1000000000, 1000000000, 1000000000, 1000 FROM tenants
"""
PAST = """
INSERT INTO ledger (tenant, task, kind, number, tokens)
    SELECT tenant, id, kind, n, 1 FROM tasks, unnest(ARRAY['prompt', 'sampled', 'trained']) kind, generate_series(0, 9) n;
INSERT INTO events (tenant, task, event, data, number) SELECT tenant, id, 'step', '{}', n FROM tasks, generate_series(1, 20) n;
INSERT INTO stored_blobs (name, task, version, kind, bytes) SELECT id || n, id, n, 'adapter', 1 FROM tasks, generate_series(1, 5) n;
INSERT INTO budgets (tenant, period, unit, amount, begins_at, before) SELECT id, 'total', 'tokens', 1000000000, now(), 0 FROM tenants
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=lambda text: [int(part) for part in text.split(",")], default=[10, 1000], help="of tenants")
    parser.add_argument("--asks", type=int, default=400, help="of each verb, a round")
    options = parser.parse_args()
    machine = report.machine()
    with postgres() as (folder, (port, _)), nats(folder) as nats_url:
        urls = {count: migrated_database(port, f"limits_{count}") for count in options.counts}
        spent = asyncio.run(_measured(urls, nats_url, options.asks))
    found = {f"{count} tenants": {name: _milliseconds(values) for name, values in each.items()} for count, each in spent.items()}
    first, last = spent[options.counts[0]], spent[options.counts[-1]]
    ratios = {name: round(report.percentile(last[name], 0.9) / report.percentile(first[name], 0.9), 2) for name in first}
    result: dict[str, object] = {
        "machine": machine,
        "asks": options.asks,
        "rounds": ROUNDS,
        "tenants": found,
        "p90_of_last_to_first": ratios,
    }
    print(f"{found}\n{ratios}\nwritten: {report.write(NAME, result)}")


async def _measured(urls: dict[int, str], nats_url: str, asks: int) -> dict[int, dict[str, list[float]]]:
    """Seconds by number of tenants and by what was done."""
    from sqlalchemy import text

    from scheduler_svc.store.database import Database

    names = ["admission", *(f"ask {verb}" for verb in questions_of("t"))]
    spent: dict[int, dict[str, list[float]]] = {count: {name: [] for name in names} for count in urls}
    for count, url in urls.items():
        async with await Database.connect(url) as database:
            await run_tasks(database, count, one_tenant=False)
            async with database.transaction() as tx:
                for statement in (LIMITED, *PAST.split(";")):
                    await tx.connection.execute(text(statement))
        await analyze(url)
    for _ in range(ROUNDS):
        for count, url in urls.items():
            async with await Database.connect(url) as database:
                spent[count]["admission"] += (await admission_times(database))[0]
                for verb, times in (await _asked(database, nats_url, count, asks)).items():
                    spent[count][verb] += times
    return spent


async def _asked(database: Any, nats_url: str, count: int, asks: int) -> dict[str, list[float]]:
    from scheduler_svc.ask.asks import Asks
    from scheduler_svc.ask.question import Sources

    async with await Bus.connect(nats_url, "bench") as bus, await Bus.connect(nats_url, "client") as client:
        asked = [(name, questions_of(name)) for name in (f"t{number % count:05}" for number in range(asks))]
        (first, questions), *_ = asked
        answering = asyncio.create_task(Asks(bus, Sources.of(bus, database, {})).run())
        try:
            async with asyncio.timeout(10):
                while not await _is_answered(client, first):  # noqa: ASYNC110  another connection subscribes
                    await asyncio.sleep(0.05)
            spent: dict[str, list[float]] = {}
            for verb, request in questions.items():
                await _times(client, verb, [(first, request)] * WARM)
                spent[f"ask {verb}"] = await _times(client, verb, [(name, of_tenant[verb]) for name, of_tenant in asked])
            return spent
        finally:
            answering.cancel()
            await asyncio.wait([answering])


async def _is_answered(client: Bus, tenant: str) -> bool:
    try:
        await client.requests.ask(ask(tenant, "tasks"), AskTasks(), timeout_s=10)
    except NoResponder:
        return False
    return True


async def _times(client: Bus, verb: str, requests: Sequence[tuple[str, Message]]) -> list[float]:
    """Seconds of each answer. A task has the name of its tenant."""
    spent: list[float] = []
    for tenant, request in requests:
        began = time.perf_counter()
        answer = await client.requests.ask(ask(tenant, verb), request, timeout_s=10)
        spent.append(time.perf_counter() - began)
        assert "refused" not in answer.headers.get("Marlaas-Kind", ""), answer.body
    return spent


def _milliseconds(values: Sequence[float]) -> dict[str, float]:
    return {name: round(1000 * report.percentile(values, share), 2) for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}


if __name__ == "__main__":
    run_or_exit("bench.limits", main)
