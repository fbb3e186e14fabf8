"""Dispatch: `python -m bench.coserving NAME,… [options]`."""

import argparse
import importlib
import sys
from typing import Any

from bench.coserving.sums import Options, table
from bench.harness import report
from bench.harness.report import CODE
from bench.harness.services import run_or_exit

NAMES = ("arms", "full", "weights")
MEASURES = (*CODE, "gateway_svc")


def main() -> None:
    parser = argparse.ArgumentParser(description="Serving under latency goals; see bench/coserving/__init__.py.")
    parser.add_argument("names", help="names, separated by commas")
    parser.add_argument("--small", action="store_true", help="cases whose numbers mean nothing")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of each arm in a round")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--arms", help="of the part `arms`, separated by commas, with `ours` among them; default: all")
    options = parser.parse_args()
    arms = tuple(options.arms.split(",")) if options.arms else ()
    for name in options.names.split(","):
        if name not in NAMES:
            parser.error(f"there is no {name}; there are {', '.join(NAMES)}")
        small = Options(1, 1.5, options.device, small=True, arms=arms or ("order", "ours"))
        measure(name, small if options.small else Options(options.rounds, options.seconds, options.device, arms=arms))


def measure(name: str, options: Options) -> None:
    machine = report.machine()
    result: dict[str, Any] = {"machine": machine, **importlib.import_module(f"bench.coserving.{name}").run(options)}
    machine["load_after"] = report.load_now()
    print(table(result["rows"]), table(result.get("checks", [])), sep="\n\n", flush=True)
    print(f"written: {report.write(f'coserving-{name}', result, MEASURES)}", file=sys.stderr)


if __name__ == "__main__":
    run_or_exit("bench.coserving", main)
