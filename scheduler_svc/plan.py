"""`python -m scheduler_svc.plan TRACE [--accelerators N] [--device-gib G]`: whether pools should share accelerators.

`marlaas pools plan` runs it. It uses the scheduler's decision functions, and needs neither NATS nor PostgreSQL.
"""

import argparse
import sys
from pathlib import Path

from common.accelerators import trace as traces
from common.accelerators.trace import Trace
from common.runtime.output import ends_with_its_reader
from scheduler_svc.accelerators.decisions.advice import Accelerator, Advice, advice
from scheduler_svc.accelerators.decisions.state import MemoryBudget

GIB = 2**30
UNBOUNDED = 2**62


def lines(trace: Trace, found: Advice) -> list[str]:
    """The advice as lines of sentences and tables."""
    shown = [f"{len(trace.tasks)} tasks of {len(found.bubble)} pools, {sum(len(one.steps) for one in trace.tasks)} steps", ""]
    shown.append(f"{'pool':<20} {'idle alone':>10} {'switch':>9}")
    shown += [f"{pool:<20} {found.bubble[pool]:>10.0%} {found.switch_s[pool]:>7.2f} s" for pool in sorted(found.bubble)]
    if found.unknown:
        shown.append(
            f"nothing is known of switches to {', '.join(found.unknown)}: they count as none. Put the pool on an accelerator, and calibrate"
        )
    if found.together is None:
        return [*shown, "", "one pool has no other to share with"]
    shown += ["", f"{'together on one accelerator':<40} {'saved':>7} {'slowdown':>9}"]
    for one in (found.together, *found.pairs):
        shown.append(f"{', '.join(one.pools)[:40]:<40} {one.worth.saved_share:>7.0%} {one.worth.slowdown:>8.2f}x")
    shown += ["", _verdict(found)]
    if found.best is None:
        return shown
    for job, where in sorted(found.placement.accelerators.items()):
        shown.append(f"place {job} on {where}")
    if waiting := found.placement.waiting:
        shown.append(
            f"no room for {', '.join(waiting)} beside them: plan with more --accelerators or --memory-gib, or give their pools their own"
        )
    return shown


def _verdict(found: Advice) -> str:
    best, together = found.best, found.together
    if best is None and together is not None and together.worth.is_worth_it:
        saved, slowdown = together.worth.saved_share, together.worth.slowdown
        return (
            f"sharing does not pay: it saves {saved:.0%}, and a step takes {slowdown:.2f} times as long. Give each pool its own accelerator"
        )
    if best is None:
        return "sharing loses: it takes more accelerator time than each pool alone, one after another. Give each its own accelerator"
    saved, slowdown = best.worth.saved_share, best.worth.slowdown
    return f"share {', '.join(best.pools)}: {saved:.0%} of the accelerator time is saved, and a step takes {slowdown:.2f} times as long"


@ends_with_its_reader()
def main() -> None:
    parser = argparse.ArgumentParser(description="Whether pools should share accelerators, expected from a trace.")
    parser.add_argument("trace", type=Path)
    parser.add_argument("--accelerators", type=int, default=1, help="accelerators to place the tasks on")
    parser.add_argument("--device-gib", type=float, help="memory of each; default: as much as the largest pool needs")
    options = parser.parse_args()
    device_bytes = None if options.device_gib is None else int(options.device_gib * GIB)
    budget = MemoryBudget(UNBOUNDED if device_bytes is None else device_bytes, UNBOUNDED)
    places = [Accelerator(f"accelerator {number + 1}", budget) for number in range(max(1, options.accelerators))]
    try:
        trace = traces.read(options.trace)
        sys.stdout.write("\n".join(lines(trace, advice(trace, places, device_bytes))) + "\n")
    except (ValueError, OSError) as error:
        raise SystemExit(f"marlaas: {error}") from None


if __name__ == "__main__":
    main()
