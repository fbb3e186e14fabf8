"""A pretrained model learns on a CPU: SmolLM2-135M and the task of recipes/format-135m, three seeds on one stack.

    python recipes/format-135m/make_base.py                      # first, once
    python -m bench.learning.smollm [--seeds 0,1,2] [--steps 20]     writes bench/results/smollm.json

Every seed is a task of a tenant of its own, and all train at once. The gain is that of the task's own evaluations, on topics that are in no
prompt of training: last version minus version 0, paired by prompt, with an interval over seeds and prompts. Then each adapter
samples replies in the engine, and transformers and PEFT compute the log-probabilities of the same tokens. What is finished stays in
`--work`, so a run that was stopped continues.
"""

import argparse
import asyncio
import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench.harness import report
from bench.harness.report import ROOT
from bench.harness.services import run_or_exit
from bench.learning import logprobs
from bench.learning.arms import HELD_OUT, Arm, Workplace, costs, train
from bench.learning.intervals import over_seeds_and_prompts
from common.pools import Pool, Pools, layers_of, read_pools
from common.spec import TaskSpec, complete
from env_svc.builtin.exact_words import ExactWords, ExactWordsState, reward, words_in
from env_svc.contract import Opening
from marlaas.reporting.progress import Progress

NAME = "smollm"
RECIPE = ROOT / "recipes" / "format-135m"
WORK = ROOT / ".marlaas" / "smollm"
MEASURES = (*report.CODE, "bench/learning", "recipes/format-135m")
MIN_LOWER_BOUND = 0.2
"""Minimum lower bound of the mean gain in greedy reward on held-out topics, for the task to count as learned."""
MIN_SEED = 0.1
"""Minimum gain of every seed."""
MAX_DIFFERENCE = 1e-3
"""Maximum difference in nats of any token's log-probability, for engine and PEFT to count as equal."""
FIRST_ROW = 2**31
"""First row of held-out prompts, as in a task's evaluations."""
SHOWN_REPLIES = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, help="in place of the recipe's")
    parser.add_argument("--threads", type=int, default=2, help="of everything but the stack")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of runs and adapters")
    parser.add_argument("--pools", type=Path, default=RECIPE / "pools.toml", help="file with another model in the recipe's pool")
    options = parser.parse_args()
    pools = read_pools(options.pools)
    spec = recipe_task(pools, None, options.steps)
    pool = pools[spec.pool]
    if not (Path(pool.model) / "tokenizer.json").exists():
        sys.exit(f"{pool.model} is missing: run python recipes/format-135m/make_base.py")
    torch.set_num_threads(options.threads)
    machine = report.machine()
    place = Workplace(options.work, options.steps)
    place.folder.mkdir(parents=True, exist_ok=True)
    arms = [Arm("rl", 0, int(seed)) for seed in options.seeds.split(",")]
    missing = {arm: recipe_task(pools, arm.seed, options.steps) for arm in arms if not place.is_done(arm)}
    if missing:
        train(place, options.pools, missing, numbers)
    result: dict[str, object] = summary(spec, {arm.seed: place.read(arm) for arm in arms})
    result |= same_logprobs(pool, spec, {f"seed-{arm.seed}": place.adapter(arm) for arm in arms})
    print(json.dumps({key: value for key, value in result.items() if key not in ("task", "runs")}, indent=1))
    print(f"written: {report.write(NAME, {'machine': machine, **result}, MEASURES)}")


def recipe_task(pools: Pools, seed: int | None, steps: int | None) -> TaskSpec:
    """The recipe's task with its pool's defaults; with a seed, as a task of a tenant of its own."""
    raw: dict[str, Any] = tomllib.loads((RECIPE / "task.toml").read_text())
    if seed is not None:
        raw |= {"name": f"format-{seed}", "tenant": f"tenant-{seed}", "seed": seed}
    return complete(raw | ({"steps": steps} if steps else {}), layers_of(raw, pools))


def numbers(one: Progress) -> dict[str, Any]:
    """Costs, training curve, and the reward at each prompt of each evaluation."""
    evaluations = {
        protocol: {str(version): list(found.rewards_by_prompt().values()) for version, found in versions.items()}
        for protocol, versions in one.evaluations.items()
    }
    return costs(one) | {"evaluations": evaluations}


def summary(spec: TaskSpec, runs: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """What the seeds gained by each protocol, and whether that is what was demanded before."""
    first, last = "0", str(spec.steps)
    protocols = [one.name for one in spec.evaluation.protocols]
    gains: dict[str, dict[str, Any]] = {
        name: {
            "before": round(fmean(fmean(run["evaluations"][name][first]) for run in runs.values()), 4),
            "after": round(fmean(fmean(run["evaluations"][name][last]) for run in runs.values()), 4),
            "gain": over_seeds_and_prompts(gains_S_P(name, first, last, runs)).to_json(),
            "seeds": [round(float(gain), 4) for gain in gains_S_P(name, first, last, runs).mean(1)],
            "exact_before": round(float(exact_S_P(name, first, runs).mean()), 4),
            "exact_after": over_seeds_and_prompts(exact_S_P(name, last, runs)).to_json(),
        }
        for name in protocols
    }
    held_out = gains[HELD_OUT]
    return {
        "task": spec.model_dump(mode="json", exclude={"name", "tenant", "seed"}),
        "demanded": {"lower_bound": MIN_LOWER_BOUND, "every_seed": MIN_SEED, "logprobs": MAX_DIFFERENCE},
        "is_learned": held_out["gain"]["low"] >= MIN_LOWER_BOUND and min(held_out["seeds"]) >= MIN_SEED,
        "protocols": gains,
        "best_constant": best_constant(spec.environment.options["counts"]),
        "runs": {str(seed): without_prompts(run) for seed, run in runs.items()},
    }


def gains_S_P(protocol: str, first: str, last: str, runs: Mapping[int, Mapping[str, Any]]) -> NDArray[np.float64]:
    """Reward at each prompt, the last version's minus the first's, a row for each seed. Shape: (S, P)."""
    found = [run["evaluations"][protocol] for run in runs.values()]
    return np.array([np.subtract(one[last], one[first]) for one in found], dtype=np.float64)


def exact_S_P(protocol: str, version: str, runs: Mapping[int, Mapping[str, Any]]) -> NDArray[np.float64]:
    """1 where the reply had exactly as many words as asked for. Shape: (S, P)."""
    return np.array([np.equal(run["evaluations"][protocol][version], 1.0) for run in runs.values()], dtype=np.float64)


def best_constant(counts: Sequence[int] | Any) -> dict[str, float]:
    """Reward of the best policy that gives the same number of words whatever is asked: only more than that needs the prompt's number."""
    rewards = {words: fmean(reward(words, count) for count in counts) for words in range(1, max(counts) + 1)}
    words = max(rewards, key=rewards.__getitem__)
    return {"words": words, "reward": round(rewards[words], 4), "exact": round(fmean(words == count for count in counts), 4)}


def without_prompts(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run's numbers with the mean of each evaluation in place of the reward at each prompt."""
    means = {
        protocol: {version: round(fmean(rewards), 4) for version, rewards in versions.items()}
        for protocol, versions in run["evaluations"].items()
    }
    return {**run, "evaluations": means}


def same_logprobs(pool: Pool, spec: TaskSpec, adapters: Mapping[str, Path]) -> dict[str, Any]:
    """Differences of log-probabilities between engine and PEFT on the held-out prompts, and what the greedy replies to them are like."""
    openings = asyncio.run(held_out(spec))
    replies = logprobs.of_engine(pool, adapters, [one.messages for one in openings], spec.sampling.max_tokens, spec.evaluation.seed)
    apart = logprobs.differences(pool.model, adapters, replies)
    counts = [one.state["count"] for one in openings]
    return {
        "logprobs": apart,
        "is_equal": max(one["max"] for one in apart.values()) <= MAX_DIFFERENCE,
        "words": {name: words_by_count(counts, one.greedy_P) for name, one in replies.items()},
        "replies": {
            opening.messages[0].content: {name: one.greedy_P[place] for name, one in replies.items()}
            for place, opening in enumerate(openings[:SHOWN_REPLIES])
        },
    }


async def held_out(spec: TaskSpec) -> list[Opening[ExactWordsState]]:
    """The prompts of the protocol that decides."""
    protocol = spec.evaluation.protocols[0]
    environment = ExactWords(**spec.environment_of(protocol).options)  # pyright: ignore[reportArgumentType]  # options of a checked task
    return [await environment.open(FIRST_ROW + row, protocol.seed) for row in range(protocol.prompts)]


def words_by_count(counts: Sequence[int], texts: Sequence[str]) -> dict[str, float]:
    """Number of words asked for → mean number that the replies have; the reply's limit cuts long ones."""
    found: dict[int, list[int]] = {}
    for count, text in zip(counts, texts, strict=True):
        found.setdefault(count, []).append(words_in(text))
    return {str(count): round(fmean(words), 2) for count, words in sorted(found.items())}


if __name__ == "__main__":
    run_or_exit(NAME, main)
