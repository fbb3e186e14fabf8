"""Dispatch: `python -m bench.serving NAME [options]`."""

import argparse
import importlib
import json
import sys
from typing import Any

from bench.harness import report
from bench.harness.report import CODE
from bench.harness.services import run_or_exit

NAMES = ("latency", "streams", "contended")
MEASURES = (*CODE, "gateway_svc")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measurements of serving; see bench/serving/__init__.py.")
    parser.add_argument("names", help="names, separated by commas")
    parser.add_argument("--small", action="store_true", help="a case whose numbers mean nothing")
    options = parser.parse_args()
    for name in options.names.split(","):
        if name not in NAMES:
            parser.error(f"there is no {name}; there are {', '.join(NAMES)}")
        measure(name, small=options.small)


def measure(name: str, *, small: bool) -> None:
    program = importlib.import_module(f"bench.serving.{name}")
    machine = report.machine()
    result: dict[str, Any] = {"machine": machine, **program.run(small=small)}
    machine["load_after"] = report.load_now()
    print(json.dumps({key: value for key, value in result.items() if key != "machine"}, indent=1), file=sys.stderr)
    print(f"written: {report.write(f'serving-{name}', result, MEASURES)}")


if __name__ == "__main__":
    run_or_exit("bench.serving", main)
