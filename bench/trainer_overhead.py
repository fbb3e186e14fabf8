"""Share of an optimizer step outside torch: `python -m bench.trainer_overhead`. A minute on one core. Prints JSON.

Outside torch is processor time while no frame of torch, of the model (transformers) or of the modules that hold tensor
code only (`TENSOR_CODE`) is on the stack. That is this repository's own part: advantages, packing, metrics,
bookkeeping, and the few tensor operations between them. A timer of the process's processor time samples the stack some hundreds of
times a second: unlike a tracing profiler it slows nothing down, and other load does not matter. One step is repeated with other
trajectories, with its canary.
"""

import argparse
import json
import math
import signal
import statistics
import time
from collections import Counter
from types import FrameType
from typing import Any

from bench.harness.report import machine, write
from bench.shared_steps import load, steps

INTERVAL_S = 0.002
"""Processor time between two samples; a kernel may round it up to its tick."""
LIBRARIES = ("/torch/", "/transformers/")
TENSOR_CODE = ("batched_lora.py", "lora.py", "loss.py", "optimizer.py", "policy.py")
"""Modules of trainer_svc whose functions take and return tensors."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--model", help="folder or name; default: the tiny one on a CPU, a random one of 0.6 B parameters on a GPU")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--groups", default="4,16", help="numbers of groups in a step")
    parser.add_argument("--size", type=int, default=8, help="members of a group")
    parser.add_argument("--prompt", type=int, default=40, help="mean tokens of a prompt")
    parser.add_argument("--new", type=int, default=16, help="maximum tokens of a reply")
    parser.add_argument("--budget", type=int, default=16_384, help="padded tokens in a micro-batch")
    parser.add_argument("--seconds", type=float, default=20.0, help="of processor time, for each number of groups")
    parser.add_argument("--repeats", type=int, default=8, help="different steps that are taken in turn")
    parser.add_argument("--name", help="write bench/results/<name>.json")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    described, wanted = machine(), [int(number) for number in args.groups.split(",")]
    rows = list[dict[str, Any]]()
    for args.groups in wanted:
        rows.append({"groups": args.groups} | measured(args))
    settings = {name: getattr(args, name) for name in ("device", "threads", "size", "prompt", "new", "budget")}
    found = {"machine": described} | settings | {"rows": rows}
    print(json.dumps(found, indent=1))
    if args.name:
        write(args.name, found)


def measured(args: argparse.Namespace) -> dict[str, Any]:
    run = steps(args, load(args), 1, together=False)
    run(0)
    seen, took_s = Counter[str](), list[float]()

    def look(_: int, frame: FrameType | None) -> None:
        seen[_where(frame)] += 1

    before = signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
    try:
        while sum(took_s) < args.seconds:
            started_s = time.process_time()
            run(1 + len(took_s) % args.repeats)
            took_s.append(time.process_time() - started_s)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    looks = seen.total()
    share = 1 - seen["torch"] / looks
    return {
        "steps": len(took_s),
        "step_cpu_ms": round(1000 * statistics.median(took_s), 2),
        "looks": looks,
        "outside_torch_share": round(share, 4),
        "standard_error": round(math.sqrt(share * (1 - share) / looks), 4),
        "outside_by_module": {name: round(count / looks, 4) for name, count in seen.most_common() if name != "torch"},
    }


def _where(frame: FrameType | None) -> str:
    """`torch`, or the innermost module of this repository."""
    own = None
    while frame is not None:
        path = frame.f_code.co_filename
        name = path.rpartition("/")[2]
        if any(library in path for library in LIBRARIES) or ("/trainer_svc/" in path and name in TENSOR_CODE):
            return "torch"
        if own is None and "/trainer_svc/" in path:
            own = name
        frame = frame.f_back
    return own or "elsewhere"


if __name__ == "__main__":
    main()
