"""`python -m bench.plex.real.faults [--only NAME,NAME] [--small]`: runs that are kept already are not repeated, so it may be stopped and
resumed."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from bench.harness import report
from bench.harness.services import BenchError, run_or_exit
from bench.plex.real import bases
from bench.plex.real.faults import figures, schedule
from bench.plex.real.faults.run import run
from bench.plex.real.kept import FOLDER, kept_in

MEASURES = ("bench/plex/real/faults", "bench/plex/real/recorder.py", *report.CODE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="few faults, and numbers that mean nothing")
    parser.add_argument("--only", default="", help="runs whose names begin with one of these")
    parser.add_argument("--most", type=int, default=0, help="end after so many runs; the rest is for another time")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of base models and finished runs")
    parser.add_argument("--forget", action="store_true", help="repeat finished runs")
    options = parser.parse_args()
    kept = kept_in(options.folder, "faults-small" if options.small else "faults", forget=options.forget)
    machine, models = report.machine(), bases.make(options.folder / "bases")
    runs = schedule.small() if options.small else schedule.whole()
    wanted = [one for one in runs if one.name.startswith(tuple(options.only.split(",")))]
    failed: list[str] = []
    done = 0
    for one in wanted if options.small else [schedule.REFERENCE, *wanted]:
        path = kept / f"{one.name}.json"
        if path.exists() or (options.most and done >= options.most):
            continue
        print(f"{one.name}: {len(one.faults)} faults", flush=True)
        try:
            found = run(one, models, _digests(kept), kept / f"logs-{one.name}")
        except BenchError as error:
            failed.append(f"{one.name}: {str(error).splitlines()[0]}")
            print(f"failed: {failed[-1]}", flush=True)
            continue
        done += 1
        path.write_text(json.dumps(found))
        print(f"{one.name}: {found['took_s']} s, {found['tasks']} tasks, {figures.complaints([found]) or 'all holds'}", flush=True)
    results = [path for name in ("undisturbed", *(one.name for one in runs)) if (path := kept / f"{name}.json").exists()]
    found = [json.loads(path.read_text()) for path in results]
    if not found:
        raise BenchError("nothing was measured")
    complaints = figures.complaints(found)
    result: dict[str, Any] = {
        "machine": machine,
        "failed": failed,
        "missing": [one.name for one in runs if not (kept / f"{one.name}.json").exists()],
        "complaints": complaints,
        **figures.summary(found),
        "runs": [{name: value for name, value in run.items() if name not in ("digests", "task_s")} for run in found],
    }
    print(json.dumps({key: value for key, value in result.items() if key not in ("runs", "machine")}, indent=1))
    print(f"written: {report.write('plex-faults', result, MEASURES)}")
    sys.exit(1 if complaints or failed else 0)


def _digests(kept: Path) -> dict[str, list[str]] | None:
    """Of the undisturbed run; None before it."""
    path = kept / f"{schedule.REFERENCE.name}.json"
    return json.loads(path.read_text())["digests"] if path.exists() else None


if __name__ == "__main__":
    run_or_exit("bench.plex.real.faults", main)
