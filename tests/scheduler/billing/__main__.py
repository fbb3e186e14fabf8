"""`python -m tests.scheduler.billing [--histories N] [--seed S] [--steps N] [--json FILE]`: random histories.

Each has a database of its own, and is checked after each step (`histories.py`). The first violation ends the program with its seed.
"""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from scheduler_svc.base.database import Database
from tests.scheduler.billing.histories import History
from tests.scheduler.many_histories import run_histories
from tests.support.postgres import copied_database, migrated, running_postgres


async def run(url: str, seed: int, steps: int) -> dict[str, int | str]:
    async with await Database.connect(url) as database:
        return await History(database, seed).run(steps)


def run_all(first: int, histories: int, steps: int) -> list[dict[str, int | str]]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with tempfile.TemporaryDirectory(prefix="marlaas-billing-") as folder, running_postgres(Path(folder)) as port:
        template = migrated(port)
        return [asyncio.run(run(copied_database(port, template), seed, steps)) for seed in range(first, first + histories)]


def sums(found: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """`Any`: as of `run_histories`."""
    paused = {"histories_with_pauses": sum(int(one["pauses"]) > 0 for one in found)}
    return paused | {name: sum(int(one[name]) for one in found) for name in ("transactions", "kills", "pauses", "steps", "checks")}


if __name__ == "__main__":
    run_histories("tests.scheduler.billing", "Check the books of random histories.", 200, 80, run_all, sums)
