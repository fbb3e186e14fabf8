"""Programs that run random histories: their options, and the JSON of what they found. A violation ends the program before."""

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.harness import report


def run_histories(
    name: str,
    description: str,
    default: int,
    steps: int,
    run: Callable[[int, int, int], Sequence[Mapping[str, Any]]],
    sums: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]],
) -> None:
    """Read options, run, print the result, and write it where `--json` says.

    `run`: (first seed, number of histories, steps of each) → what was counted in each. `sums`: of all. `Any`: numbers and texts.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=description)
    parser.add_argument("--histories", type=int, default=default)
    parser.add_argument("--seed", type=int, default=0, help="of the first history")
    parser.add_argument("--steps", type=int, default=steps, help="of each")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    began = time.monotonic()
    found = run(options.seed, options.histories, options.steps)
    result = {
        "commit": report.commit(),
        "command": f"python -m {name} --histories {options.histories} --seed {options.seed} --steps {options.steps}",
        "histories": len(found),
        "violations": 0,
        "mean_seconds": round((time.monotonic() - began) / max(1, len(found)), 2),
        **sums(found),
    }
    print(json.dumps(result, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(result | {"each": found}, indent=1) + "\n")
