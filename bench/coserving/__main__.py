"""Dispatch: `python -m bench.coserving NAME,… [options]`."""

import argparse
import importlib
import sys
from typing import Any

from bench.coserving.sums import Options, table
from bench.harness import report
from bench.harness.report import CODE
from bench.harness.services import run_or_exit
from common.pools import Goals

NAMES = ("arms", "full", "weights", "http", "simulator")
MEASURES = (*CODE, "gateway_svc")


def main() -> None:
    parser = argparse.ArgumentParser(description="Serving under latency goals; see bench/coserving/__init__.py.")
    parser.add_argument("names", help="names, separated by commas")
    parser.add_argument("--small", action="store_true", help="cases whose numbers mean nothing")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of each arm in a round")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--arms", help="of the part `arms`, separated by commas, with `ours` among them; default: all")
    parser.add_argument("--day-s", type=float, default=600.0, help="seconds of the compressed day of `http` and `simulator`")
    parser.add_argument("--overload-s", type=float, default=120.0, help="of `http`")
    parser.add_argument("--goals-ms", type=float, nargs=2, help="of `http`: to the first token, and between two; default: measured")
    parser.add_argument("--rate", type=float, help="of `http`: requests a second that serving alone attains; default: measured")
    options = parser.parse_args()
    goals = Goals(*(1e-3 * each for each in options.goals_ms)) if options.goals_ms else None
    own = {"day_s": options.day_s, "overload_s": options.overload_s, "goals": goals, "rate": options.rate}
    arms = tuple(options.arms.split(",")) if options.arms else ()
    for name in options.names.split(","):
        if name not in NAMES:
            parser.error(f"there is no {name}; there are {', '.join(NAMES)}")
        small = Options(1, 1.5, options.device, small=True, arms=arms or ("order", "ours"), day_s=10.0, overload_s=5.0)
        measure(name, small if options.small else Options(options.rounds, options.seconds, options.device, arms=arms, **own))


def measure(name: str, options: Options) -> None:
    machine = report.machine()
    result: dict[str, Any] = {"machine": machine, **importlib.import_module(f"bench.coserving.{name}").run(options)}
    machine["load_after"] = report.load_now()
    print(table(result["rows"]), table(result.get("checks", [])), sep="\n\n", flush=True)
    print(f"written: {report.write(f'coserving-{name}', result, MEASURES)}", file=sys.stderr)


if __name__ == "__main__":
    run_or_exit("bench.coserving", main)
