"""Peak memory of a training step against its estimate: `python -m bench.memory`. Writes bench/results/memory.json.

A base model of Qwen3-0.6B's shape with random weights takes one step on a single micro-batch of 512 to 8192 tokens, once with
a row for each trajectory and once with shared prompts, with all activations kept or (`--forms recomputed`) recomputed. Each case is a
process of its own; of several `--steps` the time is the median of all but the first. On a CPU the peak is the process's resident memory
(VmHWM), on a GPU what PyTorch allocated. A case whose estimate exceeds the free memory is listed, not run.

`--beside 0.6` starts an engine on that share of the device, of the same shape with weights that vLLM makes up and without graphs. Then
micro-batches around the largest that fits beside it by the estimate are tried, until one fails. A CPU has no such share: there the case
is a small one.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Generator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from bench.harness import part, report
from bench.harness.models import MODELS, random_model
from bench.harness.report import ROOT
from bench.harness.services import BenchError
from common.accelerators.memory import driver_memory
from common.pools import Pool
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
SHARES = (0.9, 1.0, 1.1, 1.25)
"""Micro-batches beside an engine, of the largest that fits by the estimate; on a CPU the first alone."""
CPU_BYTES = 2**31
"""Stands for a device's memory on a CPU."""


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    if args.case:
        print(json.dumps(measured(args)))
        return
    if args.engine:
        hold_engine(args)
        return
    if args.beside:
        rows = beside_engine(args)
        print(json.dumps(rows, indent=1))
        sys.exit(0 if any("failed" not in row for row in rows) else "bench.memory: no micro-batch fits beside the engine")
    result: dict[str, Any] = {"machine": report.machine(), "model": args.model, "rank": args.rank, "rows": []}
    for precision, form, rows in product(args.precision.split(","), args.forms.split(","), args.rows.split(",")):
        for tokens in map(int, args.tokens.split(",")):
            row = run_case(args, precision, tokens, shared=rows == "shared", recomputed=form == "recomputed")
            result["rows"].append(row)
            part.keep({"model": args.model, "rows": result["rows"]})
            print(json.dumps(row), flush=True)
    print(f"written: {report.write(args.name, result)}")
    sys.exit("bench.memory: cases failed" if any("failed" in row for row in result["rows"]) else 0)


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
    parser.add_argument("--beside", type=float, help="find the largest micro-batch beside an engine with this share of the device")
    parser.add_argument("--engine", action="store_true", help="be that engine until the input ends")
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


def beside_engine(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Cases beside an engine, until one fails."""
    shape, on_cpu, recomputed = ModelShape.of(MODELS[args.model]), args.device == "cpu", "recomputed" in args.forms
    assert shape is not None
    form = {"rank": args.rank, "shared": False, "on_cpu": on_cpu, "recomputed": (shape.layers - 1) * recomputed}
    rows: list[dict[str, Any]] = []
    with engine([f"--{name}={getattr(args, name)}" for name in ("beside", "model", "device")]) as described:
        limit = int((1 - args.beside) * CPU_BYTES) if on_cpu else driver_memory("cuda:0").free_bytes
        fits = bisect_left(
            range(2**20), limit, key=lambda tokens: train_memory(shape, tokens=tokens, precision=args.precision, **form).total
        )
        described |= {"model": args.model, "free_mib": limit >> 20, "fit_by_estimate": fits}
        for share in SHARES[: 1 if on_cpu else None]:
            rows.append(run_case(args, args.precision, int(share * fits), shared=False, recomputed=recomputed))
            part.keep(described | {"largest": max((row["tokens"] for row in rows if "failed" not in row), default=0), "rows": rows})
            if "failed" in rows[-1]:
                break
    return rows


@contextmanager
def engine(given: list[str]) -> Generator[dict[str, Any]]:
    """What an engine says of itself, which another process holds until the end of the block."""
    with part.phase("start"):
        command = [sys.executable, "-m", "bench.memory", "--engine", *given]
        running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert running.stdin is not None
        assert running.stdout is not None
        described = next((line for line in running.stdout if line.startswith("{")), "")
    try:
        if not described:
            raise BenchError(f"the engine ended at its start with status {running.wait()}")
        with part.phase("measured"):
            yield json.loads(described)
    finally:
        with part.phase("stop"):
            running.stdin.close()
            running.wait()


def hold_engine(args: argparse.Namespace) -> None:
    """An engine of the pool's defaults in this process, until the input ends."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from transformers import Qwen3Config

    from rollout_svc.engine.config import EngineSettings, engine_arguments
    from rollout_svc.engine.start import import_vllm

    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
        Qwen3Config(**MODELS[args.model], architectures=["Qwen3ForCausalLM"], max_position_embeddings=40_960).save_pretrained(folder)
        pool = Pool(model=folder, gpu_memory_share=args.beside, context_tokens=2048, kv_cache_gib=0.1, sequences=64)
        settings = EngineSettings.of(pool, device=args.device)
        given = engine_arguments(settings, cpu=import_vllm(settings))
        given.load_format, given.enforce_eager = "dummy", True
        from vllm.v1.engine.llm_engine import LLMEngine

        held = LLMEngine.from_engine_args(given)
        print(json.dumps({"engine_share": args.beside, "engine_kv_blocks": held.vllm_config.cache_config.num_gpu_blocks}), flush=True)
        sys.stdin.read()


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
