"""Seconds from `marlaas up` until every component is ready: `python -m bench.start_up [--runs 5]`.

A stack on a new folder each time. Also the processor time of all components until then, without the migrations, which have ended: other
work on the machine changes it less. Writes bench/results/start-up.json.
"""

import argparse
import statistics
import time
from typing import Any

import psutil

from bench.harness import report
from bench.harness.measures import usage
from bench.harness.report import CODE
from bench.harness.services import local_stack, run_or_exit

NAME = "start-up"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    result: dict[str, Any] = {"machine": report.machine()}
    starts = [started() for _ in range(runs)]
    for name, values in zip(("start_s", "processor_s"), zip(*starts, strict=True), strict=True):
        result |= {name: [round(one, 2) for one in values], f"median_{name}": round(statistics.median(values), 2)}
    print(result)
    print(f"written: {report.write(NAME, result, (*CODE, 'gateway_svc'))}")


def started() -> tuple[float, float]:
    """Seconds until all is ready, and processor seconds of the components."""
    began = time.monotonic()
    with local_stack() as stack:
        took = time.monotonic() - began
        return took, sum(usage.cpu_s(one) for one in usage.family(psutil.Process(stack.supervisor.pid)))


if __name__ == "__main__":
    run_or_exit("bench.start_up", main)
