"""`python -m tests.scheduler.ask [--histories N] [--seed S] [--steps N] [--json FILE]`: random histories of two tenants.

Each has servers of its own. The first answer that is not the model's (`histories.py`) ends the program with its seed.
"""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from common.bus import Bus
from marlaas.stack import servers
from tests.scheduler.ask.histories import begun
from tests.scheduler.many_histories import run_histories
from tests.support.postgres import copied_database, migrated, running_postgres
from tests.support.servers import running


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


def run_all(first: int, histories: int, steps: int) -> list[dict[str, int]]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    found: list[dict[str, int]] = []
    with tempfile.TemporaryDirectory(prefix="marlaas-histories-") as folder, running_postgres(Path(folder)) as port:
        template = migrated(port)
        for seed in range(first, first + histories):
            own = Path(folder) / str(seed)
            own.mkdir()
            found.append(asyncio.run(run(copied_database(port, template), own, seed, steps)))
    return found


def sums(found: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """`Any`: as of `run_histories`."""
    counts: Counter[str] = Counter()
    for one in found:
        counts.update({name: number for name, number in one.items() if name != "seed"})
    return dict(counts)


if __name__ == "__main__":
    run_histories("tests.scheduler.ask", "Check who sees what in random histories.", 50, 40, run_all, sums)
