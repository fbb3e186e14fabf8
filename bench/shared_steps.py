"""Steps of tasks that are ready at once: computed together against one after another. Prints JSON.

python -m bench.shared_steps                    the tiny base model on a CPU: a few minutes on one core
python -m bench.shared_steps --device cuda      a random base model of 0.6 B parameters on a GPU: under 8 minutes

Tasks differ in rank, scale and targets; trajectories are made up, so only lengths matter. Every measurement is a process of
its own, so that its peak memory is its own: the allocator's on a GPU, the process's on a CPU.
`same` is the largest difference of a gradient from the one of the step alone, relative to its norm.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bench.harness import part
from bench.harness.load.trajectories import Lengths, make_groups
from bench.harness.models import QWEN3_0_6B, random_model
from bench.harness.report import ROOT, load_now, machine, write

if TYPE_CHECKING:
    import torch

    from common.spec import TaskSpec
    from trainer_svc.batch import Group
    from trainer_svc.model.policy import Policy

WAYS = ("alone", "loop", "grouped_mm")
"""One after another; together, by a loop over the adapters in each layer; together, by one grouped product."""
SETTINGS = ("device", "threads", "groups", "size", "prompt", "new", "budget", "repeats")
RANKS = (4, 8, 16, 32)
TARGETS = (
    ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    ("q_proj", "v_proj"),
    ("q_proj", "k_proj", "v_proj", "o_proj"),
    ("gate_proj", "up_proj", "down_proj"),
)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Options, by default the command line's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--model", help="folder or name; default: the tiny one on a CPU, a random one of 0.6 B parameters on a GPU")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tasks", default="1,4,8,16,32", help="numbers of ready tasks")
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--size", type=int, default=8, help="members of a group")
    parser.add_argument("--prompt", type=int, help="mean tokens of a prompt; default 40 on a CPU, 150 on a GPU")
    parser.add_argument("--new", type=int, help="maximum tokens of a reply; default 16 on a CPU, 200 on a GPU")
    parser.add_argument("--budget", type=int, default=16_384, help="padded tokens in a micro-batch")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--most-s", type=float, default=450.0, help="seconds after which no further measurement begins")
    parser.add_argument("--name", help="write bench/results/<name>.json and docs/images/<name>.png")
    parser.add_argument("--one", nargs=2, metavar=("TASKS", "WAY"), help=argparse.SUPPRESS)
    return parser.parse_args(given)


def main() -> None:
    args = arguments()
    from trainer_svc.model.policy import choose_device

    args.device = choose_device(args.device).type
    args.prompt = args.prompt or (40 if args.device == "cpu" else 150)
    args.new = args.new or (16 if args.device == "cpu" else 200)
    if args.one:
        print(json.dumps(measured(args, int(args.one[0]), args.one[1])))
    else:
        found = measurements(args)
        print(json.dumps(found, indent=2))
        if not any(way in row for row in found["rows"] for way in WAYS):
            sys.exit(f"bench.shared_steps: nothing could be measured: {'; '.join(found['left_out'])}")
        if args.name:
            from bench.charts.learning import draw_shared_steps

            write(args.name, found)
            draw_shared_steps(found, args.name)


def measurements(args: argparse.Namespace) -> dict[str, Any]:
    described = machine()
    started, rows, left_out = time.monotonic(), list[dict[str, Any]](), list[str]()
    for tasks in map(int, args.tasks.split(",")):
        found: dict[str, Any] = {"tasks": tasks, "load_before": load_now()}
        for way in WAYS if tasks > 1 else WAYS[:1]:
            if time.monotonic() - started > args.most_s:
                left_out.append(f"{tasks} tasks, {way}: {args.most_s:.0f} s were over")
                continue
            command = [sys.executable, "-m", "bench.shared_steps", *sys.argv[1:], "--one", str(tasks), way]
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
            if done.returncode:
                left_out.append(f"{tasks} tasks, {way}: {done.stderr.strip().splitlines()[-1]}")
                continue
            found[way] = json.loads(done.stdout)
            print(f"{tasks} tasks, {way}: {found[way]['wall_s']:.3f} s", file=sys.stderr, flush=True)
        rows.append(found | {"gain": gain(found, args.device)})
        part.keep({"rows": rows, "left_out": left_out})
    if args.device == "cpu":
        left_out.append("everything on a GPU: torch sees none here")
    settings = {name: getattr(args, name) for name in SETTINGS}
    return {"machine": described} | settings | {"took_s": round(time.monotonic() - started), "rows": rows, "left_out": left_out}


def gain(found: dict[str, Any], device: str) -> float | None:
    """Speed-up of the faster way together over one after another: in processor time on a CPU, which may be shared."""
    clock = "cpu_s" if device == "cpu" else "wall_s"
    together = [found[way][clock] for way in WAYS[1:] if way in found]
    return round(found["alone"][clock] / min(together), 2) if together and "alone" in found else None


def measured(args: argparse.Namespace, tasks: int, way: str) -> dict[str, Any]:
    """Median seconds for one step of every task, and its memory, in this process."""
    import torch

    from trainer_svc.model.batched_lora import by_grouped_mm, by_loop

    policy = load(args)
    policy.batched_products = by_grouped_mm if way == "grouped_mm" else by_loop
    run = steps(args, policy, tasks, together=way != "alone")
    on_gpu = args.device == "cuda"
    run(0)
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before_mib = _resident_mib()
    walls, cpus = [], []
    for number in range(args.repeats):
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        run(number + 1)
        if on_gpu:
            torch.cuda.synchronize()
        walls.append(time.perf_counter() - wall_s)
        cpus.append(time.process_time() - cpu_s)
    memory_mib = torch.cuda.max_memory_allocated() >> 20 if on_gpu else _resident_mib()
    return {
        "wall_s": round(statistics.median(walls), 4),
        "cpu_s": round(statistics.median(cpus), 4),
        "memory_mib": memory_mib,
        "memory_before_mib": before_mib,
        "same": difference(args, policy, tasks) if way != "alone" else 0.0,
    }


def steps(args: argparse.Namespace, policy: "Policy", tasks: int, *, together: bool) -> Callable[[int], list["torch.Tensor"]]:
    """A function that takes one step of each task, always from the same states, and returns their first moments."""
    from trainer_svc.algorithm.batched_steps import run_steps
    from trainer_svc.algorithm.step import StepResult, step
    from trainer_svc.learner import initial_resident

    specs = [spec_of(task) for task in range(tasks)]
    residents = [initial_resident(policy, spec.name, spec) for spec in specs]

    def groups_of(task: int, number: int) -> "list[Group]":
        return make_groups(policy.vocabulary, 1000 * number + task, args.groups, args.size, Lengths(args.prompt, args.new))

    rounds = [[groups_of(task, number) for task in range(tasks)] for number in range(args.repeats + 1)]

    def run(number: int) -> list["torch.Tensor"]:
        asked = [
            step(policy, residents[task], groups, specs[task], budget_tokens=args.budget) for task, groups in enumerate(rounds[number])
        ]
        found: dict[int, torch.Tensor] = {}
        for offset, members in [(0, asked)] if together else [(task, [one]) for task, one in enumerate(asked)]:
            for index, result in run_steps(policy, members, budget_tokens=args.budget):
                assert isinstance(result, StepResult), result
                found[offset + index] = result.resident.optimizer.exp_avg
        return [found[task] for task in range(tasks)]

    return run


def difference(args: argparse.Namespace, policy: "Policy", tasks: int) -> float:
    import torch

    pairs = zip(*(steps(args, policy, tasks, together=together)(0) for together in (True, False)), strict=True)
    return max(float(torch.linalg.vector_norm(one - other) / torch.linalg.vector_norm(other)) for one, other in pairs)


def spec_of(task: int) -> "TaskSpec":
    from common.spec import parse_spec

    lora = {"rank": RANKS[task % 4], "alpha": 16, "targets": list(TARGETS[task // 4 % 4])}
    name = f"t{task}"
    return parse_spec(
        {"name": name, "tenant": "bench", "pool": "bench", "steps": 9, "seed": task, "environment": {"name": "none"}, "lora": lora}  # pyright: ignore[reportArgumentType]
    )


def load(args: argparse.Namespace) -> "Policy":
    import torch

    from trainer_svc.model.policy import Policy, prepare_torch

    device = torch.device(args.device)
    prepare_torch(args.threads, device)
    if args.model or args.device == "cpu":
        return Policy.load(args.model or str(ROOT / "models/tiny"), device)
    return Policy(random_model(QWEN3_0_6B, torch.bfloat16, device), device)


def _resident_mib() -> int:
    """Maximum resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


if __name__ == "__main__":
    main()
