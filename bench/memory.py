"""Peak memory of a training step against its estimate: `python -m bench.memory`. Writes bench/results/memory.json.

A base model of Qwen3-0.6B's shape with random weights takes one step on a single micro-batch of 512 to 8192 tokens, once with
a row for each trajectory and once with shared prompts, with all activations kept or (`--forms recomputed`) recomputed. Each case is a
process of its own; of several `--steps` the time is the median of all but the first. On a CPU the peak is the process's resident memory
(VmHWM), on a GPU what PyTorch allocated. A case whose estimate exceeds the free memory is listed, not run.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from bench.harness import report
from bench.harness.models import MODELS, random_model
from bench.harness.report import ROOT
from common.pools.memory import ModelShape, Precision, train_memory

if TYPE_CHECKING:
    import torch

    from trainer_svc.batch import Group

SIZES = (512, 1024, 2048, 4096, 8192)
ROW_TOKENS = 512
ATTEMPTS = 8
"""Attempts at each shared prompt, which is as long as two of them."""
FREE_SHARE = 0.9
"""Maximum estimate of a case as a share of the free memory."""


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    if args.case:
        print(json.dumps(measured(args)))
        return
    result: dict[str, Any] = {"machine": report.machine(), "model": args.model, "rank": args.rank, "rows": []}
    for precision, form, rows in product(args.precision.split(","), args.forms.split(","), args.rows.split(",")):
        for tokens in map(int, args.tokens.split(",")):
            row = run_case(args, precision, tokens, shared=rows == "shared", recomputed=form == "recomputed")
            result["rows"].append(row)
            print(json.dumps(row), flush=True)
    print(f"written: {report.write(args.name, result)}")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), default="qwen3-0.6b")
    parser.add_argument("--precision", default="float32,bfloat16", help="some of float32,bfloat16")
    parser.add_argument("--tokens", default=",".join(map(str, SIZES)), help="of the micro-batch")
    parser.add_argument("--forms", default="kept", help="some of kept,recomputed: activations, in all layers but the last")
    parser.add_argument("--rows", default="alone,shared", help="some of alone,shared: whether rows share prompts")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1, help="of each case")
    parser.add_argument("--name", default="memory", help="of the file in bench/results")
    parser.add_argument("--shared", action="store_true", help="in one case: share prompts")
    parser.add_argument("--recomputed", action="store_true", help="in one case: recompute activations")
    parser.add_argument("--case", action="store_true", help="run one case here and print it")
    return parser.parse_args(argv)


def run_case(args: argparse.Namespace, precision: Precision, tokens: int, *, shared: bool, recomputed: bool) -> dict[str, Any]:
    """One case in a process of its own; `skipped` with the reason where it does not fit, `failed` with its last output."""
    shape = ModelShape.of(MODELS[args.model])
    assert shape is not None
    layers = (shape.layers - 1) * recomputed
    estimate = train_memory(shape, rank=args.rank, tokens=tokens, precision=precision, shared=shared, recomputed=layers)
    row = {"precision": precision, "shared": shared, "recomputed": recomputed, "tokens": tokens}
    row |= {"estimate_mib": round(estimate.total / 2**20)}
    free = psutil.virtual_memory().available
    if args.device != "cuda" and estimate.total > FREE_SHARE * free:
        return row | {"skipped": f"{free / 2**30:.1f} GiB are free"}
    given = [f"--{name}={getattr(args, name)}" for name in ("model", "rank", "device", "threads", "steps")]
    command = [sys.executable, "-m", "bench.memory", "--case", *given, f"--precision={precision}", f"--tokens={tokens}"]
    command += ["--shared"] * shared + ["--recomputed"] * recomputed
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode != 0:
        return row | {"failed": done.stderr.strip()[-400:]}
    return row | json.loads(done.stdout.splitlines()[-1])


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """One step in this process, and its peak against the estimate."""
    import torch

    from common.spec import parse_spec
    from trainer_svc.algorithm.step import train_step
    from trainer_svc.learner import initial_resident
    from trainer_svc.model.policy import Policy, choose_device, prepare_torch

    device = choose_device(args.device)
    prepare_torch(args.threads, device)
    before = now_bytes(device)
    policy = Policy(random_model(MODELS[args.model], getattr(torch, args.precision), device), device)
    policy.shares_prefixes = args.shared
    if args.recomputed:
        policy.recompute_layers()
    spec = parse_spec(
        {"name": "bench", "tenant": "bench", "pool": "bench", "steps": 1, "environment": {"name": "none"}, "lora": {"rank": args.rank}}
    )
    resident = initial_resident(policy, "bench", spec)
    groups = made_groups(policy.vocabulary, int(args.tokens), shared=args.shared)
    loaded = now_bytes(device)
    forget_peak(device)
    wall, cpu = list[float](), list[float]()
    for _ in range(args.steps):
        began, computed = time.perf_counter(), time.process_time()
        metrics = train_step(policy, resident, groups, spec, budget_tokens=2 * int(args.tokens)).metrics
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - computed)
    found = {name: round(statistics.median(took[1:] or took), 2) for name, took in (("wall_s", wall), ("cpu_s", cpu))}
    tokens, peak, shape = int(metrics["computed_tokens"]), peak_bytes(device), ModelShape.of(MODELS[args.model])
    assert metrics["micro_batches"] == 1
    assert shape is not None
    estimate = train_memory(
        shape,
        rank=args.rank,
        tokens=tokens,
        precision=args.precision,
        shared=args.shared,
        on_cpu=device.type == "cpu",
        recomputed=policy.recomputed,
    )
    mib = {"process": before, "loaded": loaded, "measured": peak, "estimate": estimate.total, "activations": estimate.activations}
    return {
        "device": device.type,
        "computed_tokens": tokens,
        **{f"{name}_mib": round(value / 2**20) for name, value in mib.items()},
        "measured_share": round(peak / estimate.total, 3),
        **found,
    }


def made_groups(vocabulary: int, tokens: int, *, shared: bool) -> "list[Group]":
    """Trajectories of random tokens that make one micro-batch of about `tokens`."""
    import numpy as np

    from trainer_svc.batch import Group, Trajectory

    rng = np.random.default_rng(0)
    rows = max(1, tokens // (4 * ROW_TOKENS)) if shared else max(1, tokens // (2 * ROW_TOKENS))
    own = tokens // rows // (ATTEMPTS + 2) if shared else tokens // rows // 4
    prompt, members = (2 * own, ATTEMPTS) if shared else (own, 2)
    groups: list[Group] = []
    for number in range(rows):
        asked = rng.integers(0, vocabulary, prompt)
        sampled = np.repeat([0, 1], [prompt, own]).astype(np.uint8)
        made = tuple(
            Trajectory(
                member,
                np.concatenate([asked, rng.integers(0, vocabulary, own)]).astype(np.int32),
                sampled,
                np.where(sampled == 1, -np.log(vocabulary), 0).astype(np.float32),
                float(member % 2),
                truncated=False,
            )
            for member in range(members)
        )
        groups.append(Group(number, 1, made))  # made-up log-probabilities are stale
    return groups


def now_bytes(device: "torch.device") -> int:
    import torch

    return torch.cuda.memory_allocated() if device.type == "cuda" else psutil.Process().memory_info().rss


def forget_peak(device: "torch.device") -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: "torch.device") -> int:
    """Peak since `forget_peak`."""
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
