"""Settings of the composition task against each other, one change at a time: `python -m bench.learning.settings`.

    python -m bench.learning.settings [--settings example,no-kl] [--seeds 0,1,2]     adds to bench/results/learning-settings.json

The trainer's own steps and the environment run in one process with a sampler in transformers, strictly on policy: a seed takes two
minutes of a core. Each setting is the task of `examples/compose` but for what is named; its seeds that the JSON has are not repeated.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.algorithms import TinySampler
from bench.harness import report
from bench.learning.arms import COMMIT, EXAMPLE, WORK, Workplace
from bench.learning.evaluation import SPLITS, Sizes, evaluate
from common.spec import TaskSpec, parse_spec
from env_svc.registry import build
from marlaas.task_file import read_task
from trainer_svc.algorithm.step import train_step
from trainer_svc.learner import initial_resident
from trainer_svc.model.adapter import write_adapter
from trainer_svc.model.policy import Policy, prepare_torch

NAME = "learning-settings"
MEASURES = (*report.CODE, "bench/learning", "examples/compose", "models/compose")
CHANGES: dict[str, dict[str, dict[str, Any]]] = {
    "example": {},
    "no-kl": {"algorithm": {"kl_coefficient": 0.0}},
    "no-single": {"options": {"single_share": 0.0}},
    "no-kl-no-single": {"algorithm": {"kl_coefficient": 0.0}, "options": {"single_share": 0.0}},
    "grpo": {"algorithm": {"advantage": "grpo"}},
    "maxrl": {"algorithm": {"advantage": "maxrl"}},
    "entropy": {"algorithm": {"entropy_coefficient": 0.01}},
    "rate-3e-3": {"optimizer": {"learning_rate": 3e-3}},
    "rate-3e-4": {"optimizer": {"learning_rate": 3e-4}},
    "groups-of-8": {"algorithm": {"group_size": 8}},
    "groups-of-8-grpo-no-kl": {"algorithm": {"group_size": 8, "advantage": "grpo", "kl_coefficient": 0.0}},
}
"""Name → changed fields of the example, by section; `options` are the environment's."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", default=",".join(CHANGES))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--base", type=int, default=0, help="seed of the base model, as `bench.learning` made it")
    parser.add_argument("--steps", type=int, help="in place of the example's")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    prepare_torch(options.threads, torch.device("cpu"))
    result = {"machine": report.machine(), "runs": dict[str, dict[str, Any]]()} | report.read(NAME)
    base = Workplace(WORK).base(options.base)
    policy, sampler = Policy.load(str(base), torch.device("cpu")), TinySampler(str(base))
    for seed in map(int, options.seeds.split(",")):
        for name in options.settings.split(","):
            runs = result["runs"].setdefault(name if options.base == 0 else f"{name}, base {options.base}", {})
            if str(seed) not in runs:
                runs[str(seed)] = one_run(base, policy, sampler, changed(CHANGES[name], seed, options.steps))
                print(name, seed, runs[str(seed)]["greedy"], f"{runs[str(seed)]['took_s']} s", flush=True)
                report.write(NAME, {key: value for key, value in result.items() if key in ("machine", "runs")}, MEASURES)


def changed(changes: Mapping[str, dict[str, Any]], seed: int, steps: int | None) -> TaskSpec:
    """The example's task with these fields."""
    spec = read_task(EXAMPLE / "compose.toml")
    raw = spec.model_dump(mode="json") | {"seed": seed, "steps": steps or spec.steps}
    for section, fields in changes.items():
        if section == "options":
            raw["environment"]["options"] |= fields
        else:
            raw[section] |= fields
    return parse_spec(raw)


def one_run(base: Path, policy: Policy, sampler: TinySampler, spec: TaskSpec) -> dict[str, Any]:
    """Training rewards and entropy of every step, and greedy answers afterwards."""
    started_s = time.monotonic()
    environment = build(spec.environment.name, dict(spec.environment.options))
    resident = initial_resident(policy, spec.name, spec)
    rewards, entropy = list[float](), list[float]()
    for version in range(spec.steps):
        groups = asyncio.run(sampler.groups(environment, resident, spec, version, 0))
        rewards.append(round(float(np.mean([one.reward for group in groups for one in group.trajectories])), 4))
        trained = train_step(policy, resident, groups, spec, budget_tokens=16_384)
        resident = trained.resident
        entropy.append(round(trained.metrics["entropy"], 4))
    with tempfile.TemporaryDirectory() as folder:
        write_adapter(Path(folder), resident.layout, resident.optimizer.params, torch.float32)
        found = evaluate(base, Path(folder), Sizes(attempts=1))
    greedy = {split: round(float(np.mean(found.greedy[split])), 4) for split in SPLITS}
    return {"commit": COMMIT, "greedy": greedy, "rewards": rewards, "entropy": entropy, "took_s": round(time.monotonic() - started_s)}


if __name__ == "__main__":
    main()
