"""Benchmarks of one GPU: `python -m bench.gpu` measures speed in less than 8 minutes and writes bench/results/gpu.json;
`python -m bench.gpu acceptance` runs everything that needs a GPU, and writes bench/results/gpu-acceptance.json;
`python -m bench.gpu trainer` runs what needs no engine, and writes bench/results/gpu-trainer.json;
`python -m bench.gpu plex` runs what needs shared accelerators, and writes bench/results/gpu-plex.json.

    demo         `marlaas demo`: three tenants' tasks on the tiny model, from start to stop
    canary       engine against trainer under each of many adapters, alone and in one batch (bench.canary)
    isolation    a task alone against the same beside seven others (bench.isolation)
    memory       peak memory of a training step against its estimate (bench.memory)
    largest      the same with 8 B parameters, near the largest micro-batch of a GPU of 80 GB
    engine       tokens a second with 1 to 32 adapters in a batch against the engine without any, and adapter publish latency
    end_to_end   the one-machine stack trains four tasks at once
    steps        optimizer steps of ready tasks computed together against one after another (bench.shared_steps)
    tiers        a sampler and a trainer in vLLM's sleep levels and cold: memory by the driver, seconds of each move, random sequences of
                 moves under seeded requests, and a kill in each tier, after which locks must be free and the next one work
                 (bench.plex.real.tiers)
    two          two pools that share the device, against each alone on it (bench.plex.real)

Speed is the last three; the trainer's are `memory`, `largest` and `steps`. The engine's parts and `steps` run on a base model of
Qwen3-0.6B's shape with random weights, made on the spot. Without a GPU a small model takes its place, and the result says what that
cannot show. Each part is a process of its own, which frees its memory for the next; a failed part is reported with its last output, and
the exit status is 1.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import report
from bench.harness.models import QWEN3_0_6B, write_model
from bench.harness.report import ROOT
from marlaas.stack.placement import has_gpu

SPEED = ("engine", "end_to_end", "steps")
ACCEPTANCE = ("demo", "canary", "isolation", "memory", *SPEED)
TRAINER = ("memory", "largest", "steps")
PLEX = ("canary", "tiers", "two")
PARTS = {"speed": SPEED, "acceptance": ACCEPTANCE, "trainer": TRAINER, "plex": PLEX}
ANY = dict.fromkeys((*ACCEPTANCE, *TRAINER, *PLEX))
TIME_LIMIT_S = {"speed": 450.0, "acceptance": 3600.0, "trainer": 450.0, "plex": 2700.0}
"""Seconds after which no part continues."""
TASKS = 4
TIERS = ("--name", "tiers", "--kills")
LARGEST = ("--forms", "recomputed", "--rows", "alone", "--name", "largest")


@dataclass(frozen=True)
class Scale:
    """Parts of a measurement, and their model."""

    model: dict[str, Any]
    precision: str
    pool: str
    """Lines of the pools file."""
    demo: tuple[str, ...]
    canary: tuple[str, ...]
    isolation: tuple[str, ...]
    memory: tuple[str, ...]
    largest: tuple[str, ...]
    engine: tuple[str, ...]
    steps: tuple[str, ...]
    tiers: tuple[str, ...]
    two: tuple[str, ...]
    end_to_end: dict[str, Any]
    """Changes to a task's spec."""
    most_of_estimate: float
    """Maximum measured memory of a step over its estimate; larger for small models, where PyTorch's own memory dominates."""


QWEN = Scale(
    QWEN3_0_6B,
    precision="bfloat16",
    pool="context_tokens = 2048\nmax_rank = 32\nadapters = 32\nsequences = 256\ngpu_memory_share = 0.5\n",
    demo=(),
    canary=("--device", "cuda", "--adapters", "32"),
    isolation=("--seeds", "0,1,2"),
    memory=("--device", "cuda", "--precision", "bfloat16", "--forms", "kept,recomputed", "--tokens", "2048,8192", "--steps", "3"),
    largest=("--model", "qwen3-8b", *LARGEST, "--device", "cuda", "--precision", "bfloat16", "--tokens", "100352", "--steps", "2"),
    engine=("--adapters", "0,1,4,16,32", "--requests", "256", "--tokens", "128", "--prompt", "256", "--cores", "", "--device", "cuda"),
    steps=("--device", "cuda", "--tasks", "1,8", "--repeats", "3"),
    tiers=(*TIERS, "awake,device,host,disk,none", "--device", "cuda", "--cycles", "200", "--sequences", "200"),
    two=("two", "--device", "cuda:0", "--arms", "dedicated,fcfs,ratio", "--runs", "3"),
    end_to_end={"steps": 5, "sampling": {"max_tokens": 64}, "algorithm": {"group_size": 8, "groups_per_step": 8, "max_staleness": 1}},
    most_of_estimate=1.1,
)
SMALL = Scale(
    QWEN3_0_6B
    | {"num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 384, "vocab_size": 576}
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32},
    precision="float32",
    pool="context_tokens = 512\nmax_rank = 32\nadapters = 8\nsequences = 32\nkv_cache_gib = 0.25\n",
    demo=("--steps", "3"),
    canary=("--device", "cpu"),
    isolation=("--seeds", "0", "--steps", "2"),
    memory=("--device", "cpu", "--model", "small", "--tokens", "512,2048"),
    largest=("--model", "small", *LARGEST, "--device", "cpu", "--precision", "float32", "--tokens", "2048"),
    engine=("--adapters", "0,1,4", "--requests", "32", "--tokens", "16", "--prompt", "32", "--device", "cpu"),
    steps=("--device", "cpu", "--tasks", "2", "--repeats", "2", "--groups", "2"),
    tiers=(*TIERS, "host,none", "--cycles", "4", "--closings", "1", "--sequences", "2", "--kv-cache-gib", "0.125"),
    two=("tiny-cut", "--arms", "dedicated,ratio", "--runs", "1"),
    end_to_end={"steps": 2, "sampling": {"max_tokens": 8}, "algorithm": {"group_size": 4, "groups_per_step": 2, "max_staleness": 1}},
    most_of_estimate=1.3,
)
CANNOT_SHOW = (
    "no GPU: a small model on a CPU; nothing here is a statement about a GPU",
    "no mixed-adapter kernels of a GPU, no graphs, no bf16, no memory of a GPU shared by sampler and trainer",
    "no sleep levels of vLLM's worker for GPUs, and no driver that says what they free",
)


def main(given: list[str] | None = None) -> None:
    options = arguments(given)
    scale = QWEN if has_gpu() and not options.small else SMALL
    result: dict[str, Any] = {"machine": report.machine() | {"gpu": gpu_name()}, "cannot_show": [] if scale is QWEN else CANNOT_SHOW}
    began = time.monotonic()
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as name:
        folder = Path(name)
        pools = make_pool(scale, folder)
        for part in options.parts or PARTS[options.what]:
            left_s = TIME_LIMIT_S[options.what] - (time.monotonic() - began)
            started = time.monotonic()
            found = run_part(part, scale, pools, left_s)
            result[part] = {"seconds": round(time.monotonic() - started, 1)} | found
            if found.get("failed"):
                failed.append(part)
            print(f"{part}: {json.dumps(result[part], indent=1)}", flush=True)
    result |= {"failed": failed, "seconds": round(time.monotonic() - began, 1)}
    print(f"written: {report.write('gpu' if options.what == 'speed' else f'gpu-{options.what}', result)}")
    for line in result["cannot_show"]:
        print(f"not shown: {line}")
    sys.exit(f"bench.gpu: failed: {', '.join(failed)}" if failed else 0)


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=sorted(TIME_LIMIT_S), default="speed")
    parser.add_argument("--parts", type=lambda text: text.split(","), help=f"some of {','.join(ANY)}")
    parser.add_argument("--small", action="store_true", help="as without a GPU")
    options = parser.parse_args(given)
    if unknown := set(options.parts or ()) - ANY.keys():
        parser.error(f"no part is named {', '.join(sorted(unknown))}; there are {', '.join(ANY)}")
    return options


def make_pool(scale: Scale, folder: Path) -> Path:
    """A pools file with one pool, `bench`, and its random model."""
    import torch

    model = write_model(scale.model, getattr(torch, scale.precision), folder / "model")
    pools = folder / "pools.toml"
    pools.write_text(f'[bench]\nmodel = "{model}"\n{scale.pool}')
    return pools


def run_part(part: str, scale: Scale, pools: Path, left_s: float) -> dict[str, Any]:
    """Output of the part's process; `failed` with its last output when it fails or exceeds its time."""
    folder = pools.parent
    on_bench_pool = ("--pools", str(pools), "--pool", "bench")
    arguments = {
        "demo": ["demo", "--data", str(folder / "demo"), *scale.demo],
        "canary": ["bench.canary", *on_bench_pool, *scale.canary],
        "isolation": ["bench.isolation", *scale.isolation],
        "memory": ["bench.memory", *scale.memory],
        "largest": ["bench.memory", *scale.largest],
        "engine": ["bench.engine", *on_bench_pool, *scale.engine],
        "steps": ["bench.shared_steps", "--model", str(folder / "model"), *scale.steps],
        "tiers": ["bench.plex.real.tiers", "--models", f"bench={folder / 'model'}", *own_folder(folder), *scale.tiers],
        "two": ["bench.plex.real", *scale.two, "--folder", str(folder / "plex")],
        "end_to_end": ["bench.stack", "--pools", str(pools), "--spec", json.dumps(scale.end_to_end), "--tasks", str(TASKS)],
    }[part]
    program = [str(Path(sys.executable).with_name("marlaas"))] if part == "demo" else [sys.executable, "-m"]
    command, env = [*program, *arguments], os.environ | {"BENCH_RESULTS": str(folder), "COLUMNS": "120"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(1.0, left_s), cwd=ROOT, env=env, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": "not done within the time that all parts have"}
    if done.returncode != 0:
        measured = json.loads(file.read_text()) if (file := folder / f"{part}.json").exists() else {}
        return measured | {"failed": (done.stderr or done.stdout).strip()[-1500:]}
    return result_of(part, done.stdout, folder, scale)


def own_folder(folder: Path) -> tuple[str, ...]:
    return ("--folder", str(folder / "plex"), "--log", str(folder / "plex" / "tiers.log"))


def result_of(part: str, printed: str, folder: Path, scale: Scale) -> dict[str, Any]:
    """The part's JSON; the demo's last lines."""
    if part == "demo":
        return {"printed": printed.splitlines()[-20:]}
    if part in ("isolation", "memory", "largest"):
        found = json.loads((folder / f"{part}.json").read_text())
        return found | ({"failed": wrong} if part != "isolation" and (wrong := wrong_memory(found["rows"], scale.most_of_estimate)) else {})
    if part == "tiers":
        return json.loads((folder / "tiers.json").read_text())
    if part == "two":
        return json.loads((folder / f"plex-real-{scale.two[0]}.json").read_text())
    start = printed.find("{\n")
    return json.loads(printed[start:]) if start >= 0 else {"failed": printed.strip()[-1500:]}


def wrong_memory(rows: list[dict[str, Any]], max_share: float) -> list[dict[str, Any]]:
    """Cases that failed or exceeded their estimate. The benchmark skips and names those that do not fit."""
    return [row for row in rows if "failed" in row or row.get("measured_share", 0.0) > max_share]


def gpu_name() -> str | None:
    """The GPU's name from the driver; None where there is none."""
    if not has_gpu():
        return None
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


if __name__ == "__main__":
    main()
