"""Throughput of one stack by the number of its tasks: `python -m bench.curve --pools FILE --tasks N [--policy P]`. Prints JSON.

Tasks of two environments on the file's first pool, in turn: three turns, each answered by a tool after 0.2 to 2 s, and one turn without
a tool, as in `bench.trl`. What has not finished after `--seconds` is cancelled with the stack, and the result is not complete: rates
hold, times of tasks and steps are of those that have ended. Where sampler and trainer have own cores, `bench.agentic` measures them.

    tokens_per_s          sampled, of trained steps
    trained_tokens_per_s  computed by the trainer, prompts and padding included
    time_in               shares of the unfinished tasks' time: `held` is the machinery's, and what the policy withholds
    finish_s              from the submission of all to each task's end
"""

import argparse
import asyncio
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.agentic import PolicyRun, complete, observed
from bench.charts.policy_tables import POLICIES
from bench.harness import part, report
from bench.harness.services import BenchError, local_stack, run_or_exit
from bench.trl import LEARNING_RATE, spec

KINDS = ("tools", "single")
"""Workloads of `bench.trl`."""


def main() -> None:
    options = arguments()
    pool = next(name for name in tomllib.loads(options.pools.read_text()) if name != "accelerator")
    specs = [spec(KINDS[number % len(KINDS)], options, number, pool, options.max_tokens) for number in range(options.tasks)]
    with local_stack(options.pools, {"MARLAAS_SCHEDULER_POLICY": options.policy}) as stack:
        found = asyncio.run(observed(stack, options.policy, specs, options.groups, part.left_s(options.seconds)))
    result = figures(found)
    part.keep(result)
    print(json.dumps(result, indent=1))


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pools", type=Path, default=report.ROOT / "pools.toml")
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--policy", choices=POLICIES, default=POLICIES[0])
    parser.add_argument("--steps", type=int, default=3, help="steps of each task")
    parser.add_argument("--groups", type=int, default=4, help="groups a step")
    parser.add_argument("--size", type=int, default=8, help="members of a group")
    parser.add_argument("--max-tokens", type=int, default=64, help="of a turn; a random model never ends one before")
    parser.add_argument("--staleness", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="after which the run ends; less where its part has less left")
    parser.set_defaults(learning_rate=LEARNING_RATE)
    return parser.parse_args(given)


def figures(found: PolicyRun) -> dict[str, Any]:
    """Figures of a run. Raises: BenchError when no step was trained in its time."""
    if not found.steps:
        raise BenchError(f"no step was trained within {max(found.ended_s.values()) - found.submitted_s:.0f} s")
    result = complete(found, {"engine": 0.0, "trainer": 0.0}, draws=False)
    took_s = result["end_to_end_s"]
    first = [step.first_sampled_s for _, step in found.steps if step.first_sampled_s is not None]
    finished = [ended - found.submitted_s for name, ended in found.ended_s.items() if name not in found.unfinished]
    return result | {
        "complete": not found.unfinished,
        "finished": len(finished),
        "steps": len(found.steps),
        "first_token_s": round(min(first) - found.submitted_s, 2) if first else None,
        "trained_tokens_per_s": round(sum(step.metrics["computed_tokens"] for _, step in found.steps) / took_s),
        "finish_s": report.spread(finished) | {"min": round(min(finished, default=0.0), 3)},
    }


if __name__ == "__main__":
    run_or_exit("bench.curve", main)
