"""Greedy rewards of the demo's tasks: `python -m bench.greedy [--adapters .marlaas/demo/adapters]`.

The demo's rewards are of sampled attempts, and a policy that only became sharper earns more of them. So the tiny base model, and a
demo's adapters where they are named, answer each prompt twice: greedily, and with one sampled attempt at temperature 1. In
float32 with transformers and PEFT, on rows that no demo trains on.
"""

import argparse
import asyncio
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.harness import report
from bench.harness.load.replies import replies
from common.spec import TaskSpec
from env_svc.contract import Finish
from env_svc.registry import AnyEnvironment, build
from marlaas.demo.run import demo_tasks

MODEL = report.ROOT / "models" / "tiny"
FIRST_ROW = 1_000_000
BATCH_SIZE = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--prompts", type=int, default=1024, help="of each task")
    parser.add_argument("--adapters", type=Path, help="folder of a demo's adapters, one for each task")
    parser.add_argument("--name", default="greedy", help="of the JSON in bench/results")
    options = parser.parse_args()
    machine = report.machine()
    found = {spec.name: measured(spec, options.prompts, options.adapters) for spec in demo_tasks(report.ROOT / "examples", 0, None)}
    for task, rewards in found.items():
        print(task, rewards)
    report.write(options.name, {"machine": machine, "prompts": options.prompts, "tasks": found}, ["env_svc", "models/tiny", "examples"])


def measured(spec: TaskSpec, prompts: int, adapters: Path | None) -> dict[str, float]:
    """Mean rewards of one task, by model and by way of sampling."""
    environment = build(spec.environment.name, dict(spec.environment.options))
    model: Any = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    found = {f"version_0_{way}": asyncio.run(reward(model, environment, spec, prompts, way)) for way in ("greedy", "sampled")}
    if adapters is not None:
        model = PeftModel.from_pretrained(model, str(adapters / spec.name)).eval()
        found |= {f"trained_{way}": asyncio.run(reward(model, environment, spec, prompts, way)) for way in ("greedy", "sampled")}
    return found


async def reward(model: Any, environment: AnyEnvironment, spec: TaskSpec, prompts: int, way: str) -> float:
    """The mean over `prompts` rows, to four digits."""
    openings = [await environment.open(FIRST_ROW + row, spec.seed) for row in range(prompts)]
    torch.manual_seed(spec.seed)
    tokenizer: Any = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    rewards: list[float] = []
    for first in range(0, prompts, BATCH_SIZE):
        some = openings[first : first + BATCH_SIZE]
        asked = [opening.messages for opening in some]
        said = replies(model, tokenizer, asked, spec.sampling.max_tokens, greedy=way == "greedy")
        for opening, reply in zip(some, said, strict=True):
            turn = await environment.step(opening.state, reply)
            assert isinstance(turn, Finish)
            rewards.append(turn.reward)
    return round(fmean(rewards), 4)


if __name__ == "__main__":
    main()
