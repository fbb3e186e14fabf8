"""`python -m tests.scheduler.billing [--histories N] [--seed S] [--steps N] [--json FILE]`: random histories.

Each has a database of its own, and is checked after each step (`histories.py`). The first violation ends the program with its seed.
"""

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path

import structlog

from bench.harness import report
from scheduler_svc.store.database import Database
from tests.conftest import copied_database, migrated, running_postgres
from tests.scheduler.billing.histories import History


async def run(url: str, seed: int, steps: int) -> dict[str, int | str]:
    async with await Database.connect(url) as database:
        return await History(database, seed).run(steps)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.scheduler.billing", description="Check the books of random histories.")
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the first history")
    parser.add_argument("--steps", type=int, default=80, help="of each, before its budgets are raised")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    began, found = time.monotonic(), list[dict[str, int | str]]()
    with tempfile.TemporaryDirectory(prefix="marlaas-billing-") as folder, running_postgres(Path(folder)) as port:
        template = migrated(port)
        for seed in range(options.seed, options.seed + options.histories):
            found.append(asyncio.run(run(copied_database(port, template), seed, options.steps)))
    sums = {name: sum(int(one[name]) for one in found) for name in ("transactions", "kills", "pauses", "steps", "checks")}
    result = {
        "commit": report.commit(),
        "command": f"python -m tests.scheduler.billing --histories {options.histories} --seed {options.seed} --steps {options.steps}",
        "histories": len(found),
        "violations": 0,
        "histories_with_pauses": sum(int(one["pauses"]) > 0 for one in found),
        "mean_seconds": round((time.monotonic() - began) / max(1, len(found)), 2),
        **sums,
    }
    print(json.dumps(result, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(result | {"each": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
