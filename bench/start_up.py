"""Seconds from `marlaas up` until every component is ready, with a gateway and without: `python -m bench.start_up`.

    python -m bench.start_up [--runs 5]

A stack on a new folder each time, in turn with and without the gateway, whose order changes from pair to pair. Also the gateway's memory
and processor time while nobody asks it anything. Writes bench/results/start-up.json.
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
from marlaas.stack.state_files import StackPlan

NAME = "start-up"
IDLE_S = 20.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="of each")
    parser.add_argument("--idle-s", type=float, default=IDLE_S, help="seconds in which the gateway is watched")
    options = parser.parse_args()
    machine = report.machine()
    found: dict[str, list[float]] = {"with": [], "without": []}
    idle: list[dict[str, float]] = []
    for number in range(options.runs):
        for name in list(found) if number % 2 else list(found)[::-1]:
            took, watched = _started(gateway=name == "with", idle_s=options.idle_s if not idle else 0.0)
            found[name].append(took)
            idle += watched
            print(f"{name} a gateway: {took:.1f} s", flush=True)
    medians = {name: round(statistics.median(values), 2) for name, values in found.items()}
    machine["load_after"] = report.load_now()
    result: dict[str, Any] = {"machine": machine, "options": vars(options), "start_s": found, "median_s": medians}
    result |= {"longer_s": round(medians["with"] - medians["without"], 2), "idle_gateway": idle[0]}
    print(result)
    print(f"written: {report.write(NAME, result, (*CODE, 'gateway_svc'))}")


def _started(*, gateway: bool, idle_s: float) -> tuple[float, list[dict[str, float]]]:
    """Seconds of a start; what the gateway costs while it waits, where it is there and `idle_s` is not 0."""

    def changed(plan: StackPlan) -> StackPlan:
        kept = [one for one in plan.services if gateway or one.name != "gateway"]
        return plan.model_copy(update={"services": kept, "gateway": plan.gateway if gateway else None})

    began = time.monotonic()
    with local_stack(changed=changed) as stack:
        took = time.monotonic() - began
        if not (gateway and idle_s):
            return took, []
        identity = stack.component("gateway").process
        assert identity is not None
        return took, [_idle(psutil.Process(identity.pid), idle_s)]


def _idle(process: psutil.Process, seconds: float) -> dict[str, float]:
    family = usage.family(process)
    before = sum(usage.cpu_s(one) for one in family)
    time.sleep(seconds)
    used = sum(usage.cpu_s(one) for one in family) - before
    return {"memory_mib": round(sum(one.memory_info().rss for one in family) / 2**20, 1), "share_of_a_core": round(used / seconds, 4)}


if __name__ == "__main__":
    run_or_exit("bench.start_up", main)
