"""Time of one optimizer step: `python bench/trainer_step.py`. Writes one JSON object.

Trajectories are made up (random tokens after a prompt that the group shares; with several turns, answers between the
replies), so only lengths matter. `wall_s` is a user's waiting time,
`cpu_s` the processor time, which is steadier on a busy machine.
"""

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from trainer_svc.batch import Group

ROOT = Path(__file__).resolve().parent.parent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "models/tiny"))
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--size", type=int, default=8, help="members of a group")
    parser.add_argument("--prompt", type=int, default=40, help="mean tokens of a prompt")
    parser.add_argument("--new", type=int, default=16, help="maximum tokens of a reply")
    parser.add_argument("--least", type=int, help="minimum tokens of a reply; default: a third of the maximum")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--answer", type=int, default=30, help="mean tokens between two replies")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--budget", type=int, default=16_384, help="padded tokens in a micro-batch")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--no-sharing", action="store_true", help="compute every prompt once for each member")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    from common.spec import parse_spec
    from trainer_svc.algorithm.step import train_step
    from trainer_svc.learner import initial_resident
    from trainer_svc.model.policy import Policy, choose_device, prepare_torch

    device = choose_device(args.device)
    prepare_torch(args.threads, device)
    policy = Policy.load(args.model, device)
    policy.shares_prefixes = policy.shares_prefixes and not args.no_sharing
    spec = parse_spec(
        {"name": "bench", "tenant": "bench", "pool": "bench", "steps": 1, "environment": {"name": "none"}, "lora": {"rank": args.rank}}
    )
    resident = initial_resident(policy, "bench", spec)
    lengths = Lengths(args.prompt, args.new, args.least, args.turns, args.answer)
    walls: list[float] = []
    cpus: list[float] = []
    metrics: dict[str, float] = {}
    trajectory_tokens = 0
    for number in range(args.steps + 2):
        groups = make_groups(policy.vocabulary, number, args.groups, args.size, lengths)
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        result = train_step(policy, resident, groups, spec, budget_tokens=args.budget)
        walls.append(time.perf_counter() - wall_s)
        cpus.append(time.process_time() - cpu_s)
        resident, metrics, trajectory_tokens = result.resident, result.metrics, result.trained_tokens
    report = {
        "device": str(policy.device),
        **{
            name: getattr(args, name)
            for name in ("threads", "groups", "size", "prompt", "new", "least", "turns", "answer", "rank", "budget", "steps")
        },
        "shared_prompts": policy.shares_prefixes,
        "wall_s": summary(walls[2:]),
        "cpu_s": summary(cpus[2:]),
        **{name: metrics[name] for name in ("tokens", "computed_tokens", "micro_batches")},
        "trajectory_tokens": trajectory_tokens,
    }
    print(json.dumps(report, indent=2))


@dataclass(frozen=True)
class Lengths:
    """Lengths of made-up trajectories in tokens, named like the options."""

    prompt: int
    new: int
    least: int | None = None
    turns: int = 1
    answer: int = 30


def make_groups(vocabulary: int, seed: int, groups: int, size: int, lengths: Lengths) -> "list[Group]":
    from trainer_svc.batch import Group, Trajectory

    rng = np.random.default_rng(seed)
    least = lengths.new // 3 if lengths.least is None else lengths.least
    made = []
    for group in range(groups):
        asked = rng.integers(0, vocabulary, int(rng.integers(lengths.prompt * 0.85, lengths.prompt * 1.15 + 1)))
        members = []
        for member in range(size):
            parts = [int(rng.integers(least, lengths.new + 1))]
            for _ in range(lengths.turns - 1):
                parts += [int(rng.integers(lengths.answer * 0.85, lengths.answer * 1.15 + 1)), int(rng.integers(least, lengths.new + 1))]
            ids = np.concatenate([asked, rng.integers(0, vocabulary, sum(parts))]).astype(np.int32)
            sampled = np.repeat(np.arange(len(parts) + 1) % 2, [len(asked), *parts]).astype(np.uint8)
            logprobs = np.where(sampled == 1, -np.log(vocabulary), 0).astype(np.float32)
            members.append(Trajectory(member, ids, sampled, logprobs, float(member % 2), truncated=False))
        made.append(Group(group, 1, tuple(members)))  # made-up log-probabilities are stale
    return made


def summary(seconds: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(seconds), 4), "min": round(min(seconds), 4), "max": round(max(seconds), 4)}


if __name__ == "__main__":
    main()
