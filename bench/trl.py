"""Comparison with TRL's GRPO trainer: `python -m bench.trl`. Writes bench/results/trl.json.

The same tasks, base model, environment, LoRA, batch, learning rate and number of steps; TRL in an environment of its own, which
the first run installs (requirements/bench-trl.txt). TRL trains the tasks one after another, each with all cores, and as processes
at the same time, each with one thread. Two workloads:

    single    one turn, no waiting: computing decides
    tools     three turns, whose answers take 0.2 to 2 s: waiting decides

`reached` is the reward of either side's adapters on the same held-out rows, sampled by the same code at temperature 1: rewards in
training compare at equal staleness only.

`train_s` runs from the begin of the first task's training to the end of the last one's; start times are reported beside it.
`cpu_s` is the processor time of all processes in that time.
"""

import argparse
import asyncio
import fcntl
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness import report
from bench.harness.keys import operator
from bench.harness.measures import cores
from bench.harness.report import ROOT
from bench.harness.services import BenchError, local_stack, run_or_exit
from bench.stack import memory_mib
from common.spec import TaskSpec, parse_spec
from marlaas.stack.state_files import Stack

HOME = ROOT / ".marlaas" / "bench-trl"
TORCH = "torch==2.13.0"
"""Installed apart, as in the Makefile."""
REQUIREMENTS = ROOT / "requirements" / "bench-trl.txt"
WORKLOADS: dict[str, dict[str, Any]] = {
    "single": {"turns": 1},
    "tools": {"turns": 3, "latency": "uniform", "latency_s": 1.1, "spread": 0.9 / 1.1},
}
RANK = 8
LEARNING_RATE = 2e-3
MAX_TOKENS = 16
EPISODES = 64
"""Held-out rows on which an adapter is graded."""
EACH = {"all_train_s": "train_s", "all_reached": "reached"}
"""Values reported of every run, not only of the median one."""
TASK_S = 1200.0
"""Maximum duration of a TRL process."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=lambda text: text.split(","), default=list(WORKLOADS))
    parser.add_argument("--sides", type=lambda text: text.split(","), default=["marlaas", "one-by-one", "parallel"])
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--our-steps", type=int, help="where ours reach as much with fewer; default: as many")
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    parser.add_argument("--staleness", type=int, default=0, help="ours; TRL is strictly on policy")
    parser.add_argument("--runs", type=int, default=3, help="of each side, but once of one-by-one, which takes minutes; the median counts")
    parser.add_argument("--name", default="trl", help="of the result; sides left out keep what an earlier run of the same work found")
    parser.add_argument("--python", type=Path, help="of an environment that has TRL; default: one that is installed here")
    options = parser.parse_args()
    machine = report.machine()
    python = options.python or installed()
    work = {name: getattr(options, name) for name in ("tasks", "steps", "groups", "size", "learning_rate", "staleness")}
    work |= {"our_steps": options.our_steps} if options.our_steps else {}
    earlier = report.read(options.name)
    result: dict[str, Any] = (earlier if earlier.get("options") == work else {}) | {"machine": machine, "options": work}
    for workload in options.workloads:
        found: dict[str, Any] = result.get(workload, {})
        for side in options.sides:
            runs = [one_run(workload, side, options, python) for _ in range(1 if side == "one-by-one" else options.runs)]
            runs.sort(key=lambda run: run["train_s"])
            found[side] = runs[len(runs) // 2] | {name: [run[one] for run in runs] for name, one in EACH.items()}
            print(f"{workload}, {side}: {json.dumps(found[side])}", flush=True)
        others = [found[side]["train_s"] for side in ("one-by-one", "parallel") if side in found]
        if "marlaas" in found and others:
            found["times_faster_than_the_better"] = round(min(others) / found["marlaas"]["train_s"], 2)
            print(f"{workload}: {found['times_faster_than_the_better']} times as fast as the better of TRL's arrangements")
        result[workload] = found
    print(f"written: {report.write(options.name, result)}")


def one_run(workload: str, side: str, options: argparse.Namespace, python: Path) -> dict[str, Any]:
    return ours(workload, options, python) if side == "marlaas" else theirs(workload, options, python, parallel=side == "parallel")


def installed() -> Path:
    """The Python of TRL's environment; made at first use, and after the requirements change."""
    python, stamp = HOME / "bin" / "python", HOME / "requirements.txt"
    HOME.parent.mkdir(exist_ok=True)
    with HOME.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests in several processes need it at the same time
        if not stamp.exists() or stamp.read_text() != REQUIREMENTS.read_text():
            print("installing TRL into an environment of its own", flush=True)
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(HOME)], check=True)
            for what in ([TORCH], ["--require-hashes", "-r", str(REQUIREMENTS)]):
                subprocess.run([str(python), "-m", "pip", "install", "-q", "--no-deps", *what], check=True)
            stamp.write_text(REQUIREMENTS.read_text())
    return python


def theirs(workload: str, options: argparse.Namespace, python: Path, *, parallel: bool) -> dict[str, Any]:
    """All tasks with TRL. Raises: BenchError when a task does not end well."""
    threads = 1 if parallel else len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
        asked = [wanted(workload, options, number, threads, folder) for number in range(options.tasks)]
        commands = [_command(python, one) for one in asked]
        began = time.time()
        if parallel:
            running = [_started(command) for command in commands]
            done = [_ended(process) for process in running]
        else:
            done = [_ended(_started(command)) for command in commands]
        seconds = time.time() - began
        reached = _reached(workload, options, python, [one["folder"] for one in asked])
    spent = sum(one["train_s"] for one in done)
    first, last = min(one["started_at"] for one in done), max(one["ended_at"] for one in done)
    return {
        "train_s": round(last - first if parallel else spent, 2),
        "with_starts_s": round(seconds, 2),
        "start_s": round(statistics.median(one["start_s"] for one in done), 2),
        "cpu_s": round(sum(one["cpu_s"] for one in done), 1),
        "reward": _reward([one["rewards"] for one in done]),
        "reached": reached,
        "peak_mib": sum(one["peak_mib"] for one in done) if parallel else max(one["peak_mib"] for one in done),
    }


def _command(python: Path, asked: dict[str, Any]) -> list[str]:
    return [str(python), "-P", str(ROOT / "bench" / "trl_task.py"), json.dumps(asked)]  # -P: or bench/trl.py would be taken for TRL


def wanted(workload: str, options: argparse.Namespace, number: int, threads: int, folder: str) -> dict[str, Any]:
    """Options of `trl_task.py`."""
    return {
        "threads": threads,
        "groups": options.groups,
        "size": options.size,
        "steps": options.steps,
        "turns": WORKLOADS[workload]["turns"],
        "max_tokens": MAX_TOKENS,
        "learning_rate": options.learning_rate,
        "seed": number,
        "folder": f"{folder}/{number}",
        "model": str(ROOT / "models" / "tiny"),
        "rank": RANK,
        "environment": environment(workload),
    }


def _reached(workload: str, options: argparse.Namespace, python: Path, adapters: Sequence[str]) -> float:
    """Mean reward of the adapters in these folders."""
    asked = wanted(workload, options, 0, len(os.sched_getaffinity(0)), "")
    asked["environment"] |= {"latency_s": 0.0}
    asked |= {"adapters": adapters, "episodes": EPISODES}
    return round(statistics.mean(_ended(_started(_command(python, asked)))), 4)


def environment(workload: str) -> dict[str, Any]:
    """Options of `synthetic`: the share of vowels in the last reply is the reward."""
    return {"reward": "vowels"} | WORKLOADS[workload]


def _started(command: Sequence[str]) -> "subprocess.Popen[str]":
    env = {name: value for name, value in os.environ.items() if not name.startswith("MARLAAS_")} | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def _ended(process: "subprocess.Popen[str]") -> Any:
    try:
        output, errors = process.communicate(timeout=TASK_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise BenchError(f"a TRL task did not end within {TASK_S:.0f} s") from None
    lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
    if process.returncode != 0 or not lines:
        raise BenchError(f"a TRL task failed: {errors.strip()[-1500:]}")
    return json.loads(lines[-1].removeprefix("RESULT "))


def ours(workload: str, options: argparse.Namespace, python: Path) -> dict[str, Any]:
    """All tasks at once on the one-machine stack, each of its own tenant."""
    options = argparse.Namespace(**vars(options) | {"steps": options.our_steps or options.steps})
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
        began = time.monotonic()
        with local_stack() as stack:
            ready_s = time.monotonic() - began
            adapters = [Path(folder) / f"adapter-{number}" for number in range(options.tasks)]
            found = asyncio.run(_trained(stack, [spec(workload, options, number) for number in range(options.tasks)], adapters))
        with_starts_s = time.monotonic() - began
        found["reached"] = _reached(workload, options, python, [str(adapter) for adapter in adapters])
    return found | {"start_s": round(ready_s, 2), "with_starts_s": round(with_starts_s, 2)}


def spec(workload: str, options: argparse.Namespace, number: int, pool: str = "tiny", max_tokens: int = MAX_TOKENS) -> TaskSpec:
    turns = WORKLOADS[workload]["turns"]
    algorithm = {"group_size": options.size, "groups_per_step": options.groups, "max_staleness": options.staleness}
    return parse_spec(
        {
            "name": f"task-{number}",
            "tenant": f"tenant-{number}",
            "pool": pool,
            "steps": options.steps,
            "seed": number,
            "environment": {"name": "synthetic", "options": environment(workload)},
            "sampling": {"max_tokens": max_tokens},
            "limits": {"max_prompt_tokens": 128, "max_turns": turns, "max_reply_tokens": 64},
            "algorithm": algorithm,
            "lora": {"rank": RANK, "alpha": 2 * RANK},
            "optimizer": {"learning_rate": options.learning_rate},
        }
    )


async def _trained(stack: Stack, specs: Sequence[TaskSpec], adapters: Sequence[Path]) -> dict[str, Any]:
    """Run the specs, and write their last adapters to these folders."""
    rewards: dict[str, list[float]] = {}
    async with operator(stack) as client:
        cpu_before = sum(cores.cpu_s(stack).values())
        began = ended_at = time.time()
        tasks = await asyncio.gather(*(client.submit(one) for one in specs))
        async for event in client.watch(*tasks):
            if event.event == "step":
                rewards.setdefault(event.task, []).append(float(str(event.data["reward"])))
                ended_at = event.at_s
            elif event.event in ("failed", "cancelled"):
                raise BenchError(f"task {event.task} {event.event}: {event.data}")
        cpu_s = sum(cores.cpu_s(stack).values()) - cpu_before
        for task, folder in zip(tasks, adapters, strict=True):
            await client.pull(task, folder)
    return {
        "train_s": round(ended_at - began, 2),
        "cpu_s": round(cpu_s, 1),
        "reward": _reward(list(rewards.values())),
        "peak_mib": memory_mib(stack)["total"],  # at the end, when all is loaded: reading it costs a second of a core
    }


def _reward(rewards: Sequence[Sequence[float]]) -> dict[str, float]:
    """Means over the tasks: of each one's first step, and of its last quarter."""
    last = [statistics.mean(one[-max(1, len(one) // 4) :]) for one in rewards]
    return {"first": round(statistics.mean(one[0] for one in rewards), 4), "last": round(statistics.mean(last), 4)}


if __name__ == "__main__":
    run_or_exit("bench.trl", main)
