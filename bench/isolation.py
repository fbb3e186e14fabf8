"""Isolation of a task's learning: alone, and beside seven others, on a real stack.

    python -m bench.isolation [--seeds 0,1,2] [--steps 16]     runs all, writes bench/results/isolation.json, draws plots
    python -m bench.isolation --draw                           draws only

For each seed the task runs twice on one stack: by itself, then together with seven others that differ in environment, rank,
targets, loss, staleness and optimizer, and end when it does. Tokens are sampled at a temperature of 1 by an engine whose
batches depend on the other tasks, so the two runs draw different samples. The reward should agree up to the spread between
seeds; so should the staleness of the trained tokens and their distance from the policy.
"""

import argparse
import asyncio
import json
import sys
import time
from typing import Any

from bench.harness import part, report
from bench.harness.keys import operator
from bench.harness.services import local_stack
from common.spec import TaskSpec, parse_spec
from marlaas.client import Client
from marlaas.reporting.progress import step_of
from marlaas.stack.state_files import Stack

NAME = "isolation"
GYM: tuple[tuple[str, dict[str, Any]], ...] = (
    ("reasoning_gym:products", {"min_digits": 1, "max_digits": 1}),
    ("reasoning_gym:lcm", {"min_value": 1, "max_value": 12}),
    ("reasoning_gym:gcd", {"min_value": 1, "max_value": 12}),
    ("reasoning_gym:letter_counting", {"min_words": 1, "max_words": 2}),
)
OTHERS: tuple[dict[str, Any], ...] = (
    {"lora": {"rank": 16, "alpha": 32}, "optimizer": {"weight_decay": 0.1}},
    {"lora": {"rank": 2}, "algorithm": {"loss": "cispo"}, "optimizer": {"betas": [0.8, 0.95]}},
    {"lora": {"rank": 8, "targets": ["q_proj", "v_proj"]}, "algorithm": {"loss": "gspo", "clip_low": 3e-4, "clip_high": 4e-4}},
    {"algorithm": {"advantage": "rloo", "max_staleness": 4}, "optimizer": {"clip_norm": 0.1}},
    {"lora": {"rank": 4, "rank_stabilized": True}, "algorithm": {"passes": 2, "minibatches": 2}},
    {"algorithm": {"kl_coefficient": 0.05, "advantage": "maxrl", "max_staleness": 0}},
    {"sampling": {"temperature": 1.3, "max_tokens": 24}, "optimizer": {"learning_rate": 1e-2}},
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--draw", action="store_true", help="draw what was measured before")
    options = parser.parse_args()
    if options.draw:
        result = json.loads((report.RESULTS / f"{NAME}.json").read_text())
    else:
        result = {"machine": report.machine()} | run([int(seed) for seed in options.seeds.split(",")], options.steps)
        print(f"written: {report.write(NAME, result)}")
    if part.is_running():
        return
    from bench.charts import learning

    for plot in learning.draw_isolation(result):
        print(f"drawn: {plot}")


def run(seeds: list[int], steps: int) -> dict[str, Any]:
    with local_stack() as stack:
        return {"steps": steps, "runs": asyncio.run(all_runs(stack, seeds, steps))}


async def all_runs(stack: Stack, seeds: list[int], steps: int) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = []
    async with operator(stack) as client:
        for seed in seeds:
            for others in (0, len(OTHERS)):
                runs.append(await one_run(client, seed, steps, others))
                part.keep({"runs": runs})
                last = runs[-1]["rewards"][-4:]
                print(f"seed {seed}, beside {others}: {runs[-1]['took_s']} s, last rewards {last}", file=sys.stderr, flush=True)
    return runs


async def one_run(client: Client, seed: int, steps: int, others: int) -> dict[str, Any]:
    """The task's steps, with that many other tasks beside it throughout."""
    started_s = time.time()
    companions = [await client.submit(other(number, seed)) for number in range(others)]
    task = await client.submit(subject(seed, steps))
    metrics = list[dict[str, float]]()
    companions_steps = 0
    async for event in client.watch(task, *companions):
        if event.task == task and event.event == "step":
            metrics.append(dict(step_of(event).metrics))
            part.keep({"running": {"seed": seed, "others": others, "rewards": [step["reward_mean"] for step in metrics]}})
        elif event.event == "step":
            companions_steps += 1
        if event.task == task and event.event in ("finished", "failed", "rejected"):
            ended = event
            break
    for companion in companions:
        await client.cancel(companion, "the measured task has ended")
    assert ended.event == "finished", ended
    return {
        "seed": seed,
        "others": others,
        "others_steps": companions_steps,
        "took_s": round(time.time() - started_s, 1),
        "rewards": [round(step["reward_mean"], 4) for step in metrics],
        "staleness": mean_of(metrics, "staleness."),
        "ratio": mean_of(metrics, "ratio."),
        "effective_sample_share": round(sum(step["effective_sample_share"] for step in metrics) / len(metrics), 4),
        "sampler_mismatch": [step["sampler_mismatch"] for step in metrics if "sampler_mismatch" in step],
    }


def mean_of(metrics: list[dict[str, float]], prefix: str) -> dict[str, float]:
    """Mean over steps of every metric of a histogram; a bin that a step does not mention is empty there."""
    names = sorted({name for step in metrics for name in step if name.startswith(prefix)}, key=lambda name: float(name[len(prefix) :]))
    return {name[len(prefix) :]: round(sum(step.get(name, 0.0) for step in metrics) / len(metrics), 4) for name in names}


def subject(seed: int, steps: int) -> TaskSpec:
    return spec(f"subject-{seed}", seed, steps, 3, {"lora": {"rank": 8}, "algorithm": {"groups_per_step": 8, "advantage": "dr_grpo"}})


def other(number: int, seed: int) -> TaskSpec:
    return spec(f"other-{number}", 100 * seed + number, 1000, number % 3, OTHERS[number])


def spec(name: str, seed: int, steps: int, environment: int, sections: dict[str, Any]) -> TaskSpec:
    dataset, settings = GYM[environment]
    raw = {
        "name": name,
        "tenant": name,
        "pool": "tiny",
        "steps": steps,
        "seed": seed,
        "environment": {"name": dataset, "options": settings},
        "limits": {"max_prompt_tokens": 160},
    }
    defaults: dict[str, dict[str, Any]] = {
        "sampling": {"max_tokens": 16},
        "algorithm": {"group_size": 8, "groups_per_step": 4, "max_staleness": 1},
        "optimizer": {"learning_rate": 3e-3},
    }
    merged = {section: values | sections.get(section, {}) for section, values in defaults.items()}
    return parse_spec(raw | sections | merged)


if __name__ == "__main__":
    main()
