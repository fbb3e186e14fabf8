"""What one GPU does, in less than 8 minutes: `python -m bench.gpu`. Writes bench/results/gpu.json.

On a base model of Qwen3-0.6B's shape with random weights, made on the spot:

    engine       tokens a second with 1 to 32 adapters in a batch against the engine without any, and adapter publish latency
    end_to_end   the one-machine stack trains four tasks at once
    steps        optimizer steps of ready tasks computed together against one after another (bench.shared_steps)

Without a GPU a small model takes its place, and the result says what that cannot show. Each part is a process of its own, so
that its memory is free for the next; a part that fails is told with its last words, and the exit status is 1.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import report
from bench.report import ROOT
from marlaas.placement import has_gpu

MOST_S = 450.0
"""No part goes on after this."""
PARTS = ("engine", "end_to_end", "steps")
TASKS = 4


@dataclass(frozen=True)
class Scale:
    """What is measured, and on what."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    pool: str
    """Lines of the pools file."""
    engine: tuple[str, ...]
    steps: tuple[str, ...]
    end_to_end: dict[str, Any]
    """Changes to a task's spec."""


QWEN3_0_6B = Scale(
    *(28, 1024, 3072, 16, 8, 128, 151_936),
    pool="context_tokens = 2048\nmax_rank = 32\nadapters = 32\nsequences = 256\ngpu_memory_share = 0.5\n",
    engine=("--adapters", "0,1,4,16,32", "--requests", "256", "--tokens", "128", "--prompt", "256", "--cores", "", "--device", "cuda"),
    steps=("--device", "cuda", "--tasks", "1,8", "--repeats", "3"),
    end_to_end={"steps": 5, "sampling": {"max_tokens": 64}, "algorithm": {"group_size": 8, "groups_per_step": 8, "max_staleness": 1}},
)
SMALL = Scale(
    *(2, 128, 384, 4, 2, 32, 576),
    pool="context_tokens = 512\nmax_rank = 32\nadapters = 8\nsequences = 32\nkv_cache_gib = 0.25\n",
    engine=("--adapters", "0,1,4", "--requests", "32", "--tokens", "16", "--prompt", "32", "--device", "cpu"),
    steps=("--device", "cpu", "--tasks", "2", "--repeats", "2", "--groups", "2"),
    end_to_end={"steps": 2, "sampling": {"max_tokens": 8}, "algorithm": {"group_size": 4, "groups_per_step": 2, "max_staleness": 1}},
)
CANNOT_SHOW = (
    "no GPU: a small model on a CPU; nothing here is a statement about a GPU",
    "no mixed-adapter kernels of a GPU, no graphs, no bf16, no memory of a GPU shared by sampler and trainer",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS))
    parser.add_argument("--small", action="store_true", help="as without a GPU")
    options = parser.parse_args()
    scale = QWEN3_0_6B if has_gpu() and not options.small else SMALL
    result: dict[str, Any] = {"machine": report.machine() | {"gpu": gpu_name()}, "cannot_show": [] if scale is QWEN3_0_6B else CANNOT_SHOW}
    began = time.monotonic()
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as name:
        folder = Path(name)
        pools = make_pool(scale, folder)
        for part in options.parts:
            left_s = MOST_S - (time.monotonic() - began)
            result[part] = run_part(part, scale, pools, left_s)
            if "failed" in result[part]:
                failed.append(part)
            print(f"{part}: {json.dumps(result[part], indent=1)}", flush=True)
    result["seconds"] = round(time.monotonic() - began, 1)
    print(f"written: {report.write('gpu', result)}")
    for line in result["cannot_show"]:
        print(f"not shown: {line}")
    sys.exit(f"bench.gpu: failed: {', '.join(failed)}" if failed else 0)


def make_pool(scale: Scale, folder: Path) -> Path:
    """A pools file with one pool, `bench`, whose random model is made here; the tokenizer is the tiny model's."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    tiny, model = ROOT / "models/tiny", folder / "model"
    config = Qwen3Config(
        vocab_size=scale.vocabulary,
        hidden_size=scale.hidden,
        intermediate_size=scale.intermediate,
        num_hidden_layers=scale.layers,
        num_attention_heads=scale.heads,
        num_key_value_heads=scale.kv_heads,
        head_dim=scale.head_dim,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    made = Qwen3ForCausalLM(config).to(torch.bfloat16 if scale is QWEN3_0_6B else torch.float32)
    made.generation_config = GenerationConfig(eos_token_id=2, pad_token_id=0, do_sample=True)
    made.save_pretrained(model)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tiny / file, model / file)
    pools = folder / "pools.toml"
    pools.write_text(f'[bench]\nmodel = "{model}"\n{scale.pool}')
    return pools


def run_part(part: str, scale: Scale, pools: Path, left_s: float) -> dict[str, Any]:
    """What the part's process prints as JSON; `failed` with its last words when it does not end well, and in time."""
    arguments = {
        "engine": ["bench.engine", "--pools", str(pools), "--pool", "bench", *scale.engine],
        "steps": ["bench.shared_steps", "--model", str(pools.parent / "model"), *scale.steps],
        "end_to_end": ["bench.stack", "--pools", str(pools), "--spec", json.dumps(scale.end_to_end), "--tasks", str(TASKS)],
    }[part]
    try:
        done = subprocess.run(
            [sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=max(1.0, left_s), cwd=ROOT, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"not done within the {MOST_S:.0f} s that all parts have"}
    start = done.stdout.find("{\n")
    if done.returncode != 0 or start < 0:
        return {"failed": (done.stderr or done.stdout).strip()[-1500:]}
    return json.loads(done.stdout[start:])


def gpu_name() -> str | None:
    """As the driver calls it; None where there is none."""
    if not has_gpu():
        return None
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


if __name__ == "__main__":
    main()
