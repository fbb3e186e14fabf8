"""Time that a step spends on its samples: `python -m bench.kept_samples`. Less than a minute on one core. Prints JSON.

Steps of the tiny model, as in `bench.trainer_overhead`, that keep 4 attempts each. Counted is the processor time of choosing them and
putting them together, and of making the message, against that of the whole step. Publishing is beside the step, and no step waits for it.
"""

import json
import statistics
import time
from typing import Any

from bench.harness.report import machine, write
from bench.shared_steps import load, steps
from bench.trainer_overhead import arguments
from common.messages import StepSamples
from trainer_svc.algorithm import step as step_module
from trainer_svc.algorithm.kept_attempts import KeptAttempts, kept_attempts

ALLOWED = 0.01
"""Share of a step's time that is allowed."""


def main() -> None:
    args = arguments()
    rows = list[dict[str, Any]]()
    wanted = [int(number) for number in args.groups.split(",")]
    for args.groups in wanted:
        rows.append({"groups": args.groups} | measured(args))
    found = {"machine": machine(), "allowed": ALLOWED, "new": args.new, "rows": rows}
    print(json.dumps(found, indent=1))
    if args.name:
        write(args.name, found)


def measured(args: Any) -> dict[str, Any]:
    """`Any`: arguments of `bench.trainer_overhead`."""
    spent_s, took_s, sizes = list[float](), list[float](), list[int]()

    def timed(*given: Any) -> KeptAttempts:
        started_s = time.process_time()
        kept = kept_attempts(*given)
        message = StepSamples(tenant="t", task="t", pool="p", version=1, attempts=list(kept.attempts)).encode()
        spent_s.append(time.process_time() - started_s)
        sizes.append(len(message))
        return kept

    run, original = steps(args, load(args), 1, together=False), step_module.kept_attempts
    step_module.kept_attempts = timed
    try:
        run(0)
        spent_s.clear()
        while sum(took_s) < args.seconds:
            started_s = time.process_time()
            run(1 + len(took_s) % args.repeats)
            took_s.append(time.process_time() - started_s)
    finally:
        step_module.kept_attempts = original
    assert spent_s, "no step has kept samples"
    return {
        "steps": len(took_s),
        "step_cpu_ms": round(1000 * statistics.median(took_s), 2),
        "samples_cpu_ms": round(1000 * statistics.median(spent_s), 3),
        "share": round(sum(spent_s) / sum(took_s), 5),
        "message_bytes": round(statistics.median(sizes)),
    }


if __name__ == "__main__":
    main()
