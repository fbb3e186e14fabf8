"""`python -m tests.scheduler.ask [--histories N] [--seed S] [--steps N] [--json FILE]`: random histories of two tenants.

Each has servers of its own. The first answer that is not the model's (`histories.py`) ends the program with its seed.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from pathlib import Path

import structlog

from bench.harness import report
from common.bus import Bus
from marlaas.stack import servers
from tests.conftest import copied_database, migrated, running, running_postgres
from tests.scheduler.ask.histories import begun


async def run(database_url: str, folder: Path, seed: int, steps: int) -> dict[str, int]:
    port = servers.free_port()
    url = servers.nats_url(port)
    with running(servers.nats_command(folder / "nats", port), port, folder / "nats.log"):
        async with await Bus.connect(url, "test") as bus:
            await bus.declare()
            async with begun(bus, url, database_url, folder, seed) as history:
                try:
                    return {"seed": seed, **await history.run(steps)}
                except AssertionError as error:
                    raise AssertionError(f"seed {seed}") from error


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.scheduler.ask", description="Check who sees what in random histories.")
    parser.add_argument("--histories", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the first history")
    parser.add_argument("--steps", type=int, default=40, help="of each")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    began, found = time.monotonic(), list[dict[str, int]]()
    with tempfile.TemporaryDirectory(prefix="marlaas-histories-") as folder, running_postgres(Path(folder)) as port:
        template = migrated(port)
        for seed in range(options.seed, options.seed + options.histories):
            own = Path(folder) / str(seed)
            own.mkdir()
            found.append(asyncio.run(run(copied_database(port, template), own, seed, options.steps)))
    sums: Counter[str] = Counter()
    for one in found:
        sums.update({name: number for name, number in one.items() if name != "seed"})
    result = {
        "commit": report.commit(),
        "command": f"python -m tests.scheduler.ask --histories {options.histories} --seed {options.seed} --steps {options.steps}",
        "histories": len(found),
        "violations": 0,
        "mean_seconds": round((time.monotonic() - began) / max(1, len(found)), 2),
        **sums,
    }
    print(json.dumps(result, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(result | {"each": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
