"""`make chaos`, or `python -m tests.chaos [--faults N] [--seed S] [--steps N] [--json FILE]`."""

import argparse
import asyncio
import dataclasses
import json
import math
import sys
import tempfile
from pathlib import Path

from tests.chaos.harness import ChaosFailed, Report, run


def table(report: Report) -> str:
    lines = [f"{'fault':36} {'times':>5} {'fastest':>8} {'slowest':>8}   seconds until another step was trained"]
    for kind, taken in sorted(report.recoveries_s.items()):
        lines.append(f"{kind:36} {len(taken):5} {min(taken):8.1f} {max(taken):8.1f}")
    return "\n".join(
        [
            *lines,
            f"{report.faults} faults in {report.took_s:.0f} s; {report.tasks} tasks finished, four at a time: {report.steps} steps, "
            f"{report.trajectories} trajectories",
            f"void groups, sampled again: {report.void_groups}",
            f"died at crash points: {report.points_reached}",
            f"doctor: {report.doctor}",
            f"taken again with equal digests: {report.replayed_steps} steps",
        ]
    )


def _tell(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Break a real stack again and again.")
    parser.add_argument("--faults", type=int, default=60, help="60 are every kind about once")
    parser.add_argument("--seed", type=int, default=0, help="decides the order of the faults and their details")
    parser.add_argument("--steps", type=int, default=40, help="of each task")
    parser.add_argument("--only", default="", help="kinds whose name contains this")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no fault begins later")
    parser.add_argument("--json", type=Path, help="write the report here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="marlaas-chaos-") as folder:
        data = Path(folder) / "stack"
        try:
            run_ = run(
                data,
                seed=options.seed,
                faults=options.faults,
                steps=options.steps,
                only=options.only,
                most_s=options.minutes * 60,
                tell=_tell,
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
        options.json.write_text(json.dumps(dataclasses.asdict(report), indent=2) + "\n")


if __name__ == "__main__":
    main()
