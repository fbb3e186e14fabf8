"""Seconds from `marlaas up` until every component is ready, with a gateway and without: `python -m bench.start_up`.

    python -m bench.start_up [--runs 5]

A stack on a new folder each time, in turn with and without the gateway, whose order changes from pair to pair. Also the processor time
of all components until then, which other work on the machine changes less, and the gateway's memory and processor time while nobody asks it
anything. Writes bench/results/start-up.json.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
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
    found: dict[str, list[Start]] = {"with": [], "without": []}
    for number in range(options.runs):
        for name in list(found) if number % 2 else list(found)[::-1]:
            has_idled = any(start.idle for start in found[name])
            start = _started(gateway=name == "with", idle_s=0.0 if has_idled else options.idle_s)
            found[name].append(start)
            print(f"{name} a gateway: {start.took_s:.1f} s, processor {start.cpu_s:.1f} s", flush=True)
    machine["load_after"] = report.load_now()
    took, cpu = _medians(found, lambda start: start.took_s), _medians(found, lambda start: start.cpu_s)
    result: dict[str, Any] = {
        "machine": machine,
        "options": vars(options),
        "start_s": {name: [round(start.took_s, 2) for start in starts] for name, starts in found.items()},
        "median_s": took,
        "longer_s": round(took["with"] - took["without"], 2),
        "processor_median_s": cpu,
        "processor_more_s": round(cpu["with"] - cpu["without"], 2),
        "idle_gateway": next(start.idle for start in found["with"] if start.idle),
    }
    print(result)
    print(f"written: {report.write(NAME, result, (*CODE, 'gateway_svc'))}")


@dataclass(frozen=True)
class Start:
    took_s: float
    cpu_s: float
    """Processor seconds of all components until they were ready; without the migrations, which had ended."""
    idle: dict[str, float] | None = None
    """What the gateway costs while it waits, where that was watched."""


def _medians(found: dict[str, list[Start]], value: Callable[[Start], float]) -> dict[str, float]:
    return {name: round(statistics.median(map(value, starts)), 2) for name, starts in found.items()}


def _started(*, gateway: bool, idle_s: float) -> Start:
    """`idle_s`: seconds in which a gateway is watched afterwards; 0: it is not."""

    def changed(plan: StackPlan) -> StackPlan:
        kept = [one for one in plan.services if gateway or one.name != "gateway"]
        return plan.model_copy(update={"services": kept, "gateway": plan.gateway if gateway else None})

    began = time.monotonic()
    with local_stack(changed=changed) as stack:
        took = time.monotonic() - began
        cpu = sum(usage.cpu_s(one) for one in usage.family(psutil.Process(stack.supervisor.pid)))
        if not (gateway and idle_s):
            return Start(took, cpu)
        identity = stack.component("gateway").process
        assert identity is not None
        return Start(took, cpu, _idle(psutil.Process(identity.pid), idle_s))


def _idle(process: psutil.Process, seconds: float) -> dict[str, float]:
    family = usage.family(process)
    before = sum(usage.cpu_s(one) for one in family)
    time.sleep(seconds)
    used = sum(usage.cpu_s(one) for one in family) - before
    return {"memory_mib": round(sum(one.memory_info().rss for one in family) / 2**20, 1), "share_of_a_core": round(used / seconds, 4)}


if __name__ == "__main__":
    run_or_exit("bench.start_up", main)
