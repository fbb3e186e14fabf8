"""Time and memory of a step beside another revision's: `python -m bench.paired_step REVISION`. Writes bench/results/NAME.json.

Two processes, one of this checkout and one of the revision's files, take the same steps in turn, so that a slower minute of the machine
slows both. A model with random weights; processor seconds of each step, and the process's peak resident memory, whole and above what it had
before its first step. `ratio` is the median of the pairs' ratios, this checkout's to the revision's, with the 95 % interval of that median
by bootstrap. With `--recomputed N` this checkout recomputes activations of N layers and the revision of none.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import report
from bench.harness.models import MODELS
from bench.harness.report import ROOT

STEPS_BY = """
import json, sys, time
from dataclasses import replace
import torch
from bench.harness.models import random_model
from bench.memory import forget_peak, now_bytes, peak_bytes
from bench.trainer_step import Lengths, make_groups
from common.spec import parse_spec
from trainer_svc.algorithm.step import train_step
from trainer_svc.learner import initial_resident
from trainer_svc.model.policy import Policy, prepare_torch
given = json.loads(sys.argv[1])
device = torch.device("cpu")
prepare_torch(given["threads"], device)
policy = Policy(random_model(given["config"], getattr(torch, given["precision"]), device), device)
spec = parse_spec({"name": "bench", "tenant": "bench", "pool": "bench", "steps": 1, "environment": {"name": "none"},
    "sampling": {"temperature": 0.9}, "algorithm": {"entropy_coefficient": given["entropy"]}})
resident = initial_resident(policy, "bench", spec)
if given["recomputed"]:
    policy.recompute_layers(given["recomputed"])
loaded = now_bytes(device)
for line in sys.stdin:
    groups = make_groups(policy.vocabulary, int(line), given["groups"], 8, Lengths(40, given["new"]))
    forget_peak(device)
    began = time.process_time()
    train_step(policy, resident, groups, spec, budget_tokens=16384)
    taken = {"cpu_s": time.process_time() - began, "peak_mib": peak_bytes(device) / 2**20}
    print(json.dumps(taken | {"above_mib": taken["peak_mib"] - loaded / 2**20}), flush=True)
"""
"""Program of a side: takes a step for each line of its input, the number of the step's trajectories."""
SAMPLES = 2000
"""Samples of the bootstrap."""


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    result: dict[str, Any] = {"machine": report.machine(), "against": args.revision, "options": vars(args), "cases": []}
    with files_of(args.revision) as other:
        for model in args.models.split(","):
            for precision in args.precisions.split(","):
                for entropy in map(float, args.entropies.split(",")):
                    case = {"model": model, "precision": precision, "entropy": entropy}
                    work = {"config": MODELS[model]} | {name: getattr(args, name) for name in ("threads", "groups", "new")}
                    row = case | compared(other, case | work, args.steps, recomputed=args.recomputed)
                    result["cases"].append(row)
                    print(json.dumps(row), flush=True)
    print(f"written: {report.write(args.name, result, ['trainer_svc'])}")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="to compare this checkout with")
    parser.add_argument("--name", default="paired-step", help="of the file in bench/results")
    parser.add_argument("--models", default="large-vocabulary", help=f"some of {', '.join(MODELS)}")
    parser.add_argument("--precisions", default="bfloat16,float32")
    parser.add_argument("--entropies", default="0.0,0.01", help="coefficients of the entropy bonus")
    parser.add_argument(
        "--recomputed", type=int, default=0, help="layers whose activations this checkout recomputes, 1 to all but the last"
    )
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--groups", type=int, default=4, help="of eight attempts, in each step")
    parser.add_argument("--new", type=int, default=32, help="maximum tokens of a reply")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args(argv)


@contextmanager
def files_of(revision: str) -> Iterator[Path]:
    """Folder with the revision's files."""
    packed = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory(prefix="marlaas-revision-") as folder:
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder)


def compared(other: Path, case: dict[str, Any], steps: int, *, recomputed: int) -> dict[str, Any]:
    """Ratios of this checkout's steps to the other's; the first pair of steps is left out."""
    sides = [side(folder, case | {"recomputed": recomputed * (folder == ROOT)}) for folder in (ROOT, other)]
    try:
        pairs = [[taken(one, number) for one in (sides if number % 2 else sides[::-1])] for number in range(steps + 1)]
    finally:
        for one in sides:
            one.kill()
            one.wait()
    ordered = [pair if number % 2 else pair[::-1] for number, pair in enumerate(pairs)][1:]
    return {
        measure: summary([(own[measure], others[measure]) for own, others in ordered]) for measure in ("cpu_s", "peak_mib", "above_mib")
    }


def side(folder: Path, case: dict[str, Any]) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", STEPS_BY, json.dumps(case)]
    return subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def taken(one: "subprocess.Popen[str]", number: int) -> dict[str, float]:
    """Measurements of the side's next step."""
    assert one.stdin is not None
    assert one.stdout is not None
    one.stdin.write(f"{number}\n")
    one.stdin.flush()
    return json.loads(one.stdout.readline())


def summary(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Medians of both sides, and the median ratio with its interval."""
    ratios = np.array([own / other for own, other in pairs])
    medians = np.median(np.random.default_rng(0).choice(ratios, (SAMPLES, len(ratios))), axis=1)
    here, there = (round(statistics.median(side), 4) for side in zip(*pairs, strict=True))
    interval = [round(float(bound), 4) for bound in np.quantile(medians, (0.025, 0.975))]
    return {"here": here, "there": there, "ratio": round(float(np.median(ratios)), 4), "interval": interval}


if __name__ == "__main__":
    main()
