"""`python -m bench.plex.real NAME [--arms A,B] [--runs 5]`: runs that are kept already are not
repeated, so it may be stopped and resumed."""

import argparse
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.harness import report
from bench.harness.services import BenchError, run_or_exit
from bench.plex.real import arms, bases, figures
from bench.plex.real.kept import FOLDER, MEASURES, in_result, kept_in, name_of, runs_in
from bench.plex.real.runs import run
from bench.plex.real.workloads import WORKLOADS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(WORKLOADS))
    parser.add_argument("--arms", type=lambda text: [arms.named(one) for one in text.split(",")], default=list(arms.ARMS))
    parser.add_argument("--runs", type=int, default=5, help="starts of each arm, in shuffled order")
    parser.add_argument("--rounds", type=int, help="on each start, one after another; default: the workload's")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of base models and finished runs")
    parser.add_argument("--device", default="cpu", help="the accelerator: cpu, or cuda:N")
    parser.add_argument("--result", help="name of the result; default: plex-real-NAME")
    parser.add_argument("--forget", action="store_true", help="repeat finished runs")
    options = parser.parse_args()
    workload = WORKLOADS[options.name]
    workload = replace(workload, rounds=options.rounds or workload.rounds)
    kept = kept_in(options.folder, name_of(workload, options.device), forget=options.forget)
    models, machine = bases.make(options.folder / "bases"), report.machine()
    wanted = [(arm, number) for arm in options.arms for number in range(options.runs)]
    random.Random(0).shuffle(wanted)
    failed: list[str] = []
    for arm, number in wanted:
        if list(kept.glob(f"{arm.file_name}-{number}.*.json")):
            continue
        try:
            found = run(arm, workload, models, options.device)
        except BenchError as error:
            failed.append(f"{arm.name}: {str(error).splitlines()[0]}")
            print(f"failed: {failed[-1]}", flush=True)
            continue
        for round_, one in enumerate(found):
            (kept / f"{arm.file_name}-{number}.{round_}.json").write_text(json.dumps(one))
            print(f"{arm.name} {number}.{round_}: {one['accelerator_s_per_step']} s a step, bubble {one['bubble']}", flush=True)
    runs = runs_in(kept)
    if not runs:
        raise BenchError("nothing was measured")
    result: dict[str, Any] = {
        "machine": machine,
        "device": options.device,
        "failed": failed,
        **figures.summary(workload, runs),
        "runs": [in_result(one) for one in runs],
    }
    print(json.dumps({key: value for key, value in result.items() if key not in ("runs", "machine")}, indent=1))
    print(f"written: {report.write(options.result or f'plex-real-{workload.name}', result, MEASURES)}")


if __name__ == "__main__":
    run_or_exit("bench.plex.real", main)
