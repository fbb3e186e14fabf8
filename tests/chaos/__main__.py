"""`make chaos`, or `python -m tests.chaos [--faults N] [--seed S] [--steps N] [--json FILE]`."""

import argparse
import asyncio
import math
import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.chaos.harness import ChaosFailed, run
from tests.chaos.report import keep, origin, table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Inject faults into a real stack.")
    parser.add_argument("--faults", type=int, default=60, help="60 are every kind about once")
    parser.add_argument("--seed", type=int, default=0, help="decides the order of the faults and their details")
    parser.add_argument("--steps", type=int, default=40, help="of each task")
    parser.add_argument("--only", default="", help="kinds whose name contains this")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no fault begins later")
    parser.add_argument("--json", type=Path, help="add the run here to those of the same commit")
    options = parser.parse_args()
    before = origin()
    with tempfile.TemporaryDirectory(prefix="marlaas-chaos-") as folder:
        data = Path(folder) / "stack"
        try:
            run_ = run(
                data,
                seed=options.seed,
                faults=options.faults,
                steps=options.steps,
                only=options.only,
                max_s=options.minutes * 60,
                emit=partial(print, flush=True),
            )
            report = asyncio.run(run_)
        except ChaosFailed as failed:
            kept = Path(tempfile.gettempdir()) / f"marlaas-chaos-failed-{options.seed}"
            kept.mkdir(exist_ok=True)
            for log in (data / "logs").glob("*.log"):
                (kept / log.name).write_bytes(log.read_bytes())
            sys.exit(f"seed {options.seed}: {failed}\nlogs are kept in {kept}")
    print(table(report))
    if options.json:
        keep(options.json, report, before)


if __name__ == "__main__":
    main()
