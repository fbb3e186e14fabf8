"""Dispatch: `python -m bench.plex NAME [options]`."""

import argparse
import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.harness import report
from bench.plex.tasks import Run, simulate
from common.accelerators import Policy
from common.accelerators import trace as traces
from scheduler_svc.accelerators.decisions.state import MemoryBudget, Rules

NAMES = ("cells", "histories")
MEASURES = (
    "bench/plex",
    "common/leases/history.py",
    "rollout_svc/engine/work.py",
    "scheduler_svc/accelerators/decisions",
    "scheduler_svc/training/decisions/admission.py",
    "trainer_svc/device/meter.py",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulations of shared accelerators; see bench/plex/__init__.py.")
    parser.add_argument("names", help="names, separated by commas, or `simulate`")
    parser.add_argument("trace", type=Path, nargs="?", help="of `simulate`")
    parser.add_argument("--small", action="store_true", help="a case whose numbers mean nothing")
    parser.add_argument("--device-bytes", type=int, help="budget on the device for `simulate`; default: the largest pool")
    parser.add_argument("--host-bytes", type=int, default=2**62, help="budget in host memory for `simulate`")
    parser.add_argument("--max-wait-s", type=float, default=60.0, help="for `simulate`")
    options = parser.parse_args()
    if options.names == "simulate":
        if options.trace is None:
            parser.error("simulate needs a TRACE; common/accelerators/trace.py has the format")
        print(json.dumps(replay(options.trace, options.device_bytes, options.host_bytes, options.max_wait_s), indent=1))
        return
    for name in options.names.split(","):
        if name not in NAMES:
            parser.error(f"there is no {name}; there are {', '.join(NAMES)}, simulate")
        measure(name, small=options.small)


def measure(name: str, *, small: bool) -> None:
    program = importlib.import_module(f"bench.plex.{name}")
    machine = report.machine()
    result: dict[str, Any] = {"machine": machine, **program.run(small=small)}
    print(json.dumps({key: value for key, value in result.items() if key not in ("machine", "rows")}, indent=1))
    print(f"written: {report.write(f'plex-{name}', result, MEASURES)}")


def replay(path: Path, device_bytes: int | None, host_bytes: int, max_wait_s: float) -> dict[str, Any]:
    """A trace under every policy, and its pools one after another, each alone."""
    trace = traces.read(path)
    by_pool = [sum(one.device_bytes for one in trace.executors if one.pool == pool) for pool in trace.pools]
    rules = Rules(MemoryBudget(device_bytes or max(by_pool), host_bytes), max_wait_s=max_wait_s)
    alone_s = sum(simulate(trace.of_pool(pool), replace(rules, policy=Policy.FCFS), 0).makespan_s for pool in trace.pools)
    runs = {policy: simulate(trace, replace(rules, policy=policy), 0) for policy in Policy}
    return {"alone_s": round(alone_s, 3), "policies": {policy: described(run, alone_s) for policy, run in runs.items()}}


def described(run: Run, alone_s: float) -> dict[str, Any]:
    """What came out of a run. `step_s`: of all tasks' steps; waits: of operations, from ready to begun."""
    counts = run.accelerator.counts
    step_s = [seconds for one in run.tasks for seconds in one.step_s]
    return {
        "makespan_s": round(run.makespan_s, 3),
        "saved_share": round(1 - run.makespan_s / alone_s, 4),
        "accelerator_s_per_step": round(run.makespan_s / len(step_s), 3),
        "switches": counts.switches,
        "moving_switches": counts.moving_switches,
        "switch_share": round(counts.switch_s / run.makespan_s, 4),
        "busy_share": round(counts.busy_s / run.makespan_s, 4),
        "step_s": report.spread(step_s),
        "wait_s": report.spread(counts.operation_waits_s),
    }


if __name__ == "__main__":
    main()
