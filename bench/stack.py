"""Start time, time to a task's first step, and memory of the one-machine stack.

python -m bench.stack [--steps N]     prints JSON

`--pools FILE --spec JSON --tasks N` trains N tasks of the spec's shape on the file's first pool in place of the example tasks.
"""

import argparse
import asyncio
import json
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

import psutil

from bench.harness.keys import operator
from bench.harness.measures import usage
from bench.harness.report import ROOT, machine
from bench.harness.services import local_stack
from common.spec import TaskSpec, parse_spec
from marlaas.stack.state_files import Stack

SAMPLE_S = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="of each of the three example tasks")
    parser.add_argument("--pools", type=Path, default=ROOT / "pools.toml")
    parser.add_argument("--spec", type=json.loads, help="fields that differ from a plain task's")
    parser.add_argument("--tasks", type=int, default=4, help="with --spec")
    options = parser.parse_args()
    started = time.monotonic()
    with local_stack(options.pools) as stack:
        ready_s = time.monotonic() - started
        result = {"ready_s": round(ready_s, 1), "idle_mib": memory_mib(stack)} | asyncio.run(trained(stack, specs_of(options)))
    print(json.dumps({"machine": machine()} | result, indent=2))


def specs_of(options: argparse.Namespace) -> list[TaskSpec]:
    """The example tasks, or tasks of the given spec."""
    if options.spec is None:
        examples = [tomllib.loads(path.read_text()) for path in sorted((ROOT / "examples").glob("*.toml"))]
        return [parse_spec(example | {"steps": options.steps}) for example in examples]
    pool = next(iter(tomllib.loads(options.pools.read_text())))
    common = {"pool": pool, "steps": options.steps, "environment": {"name": "synthetic", "options": {"reward": "coin"}}} | options.spec
    own = [{"name": f"bench-{number}", "tenant": f"tenant-{number}", "seed": number} for number in range(options.tasks)]
    return [parse_spec(common | one) for one in own]


async def trained(stack: Stack, specs: Sequence[TaskSpec]) -> dict[str, object]:
    """Train the tasks together: seconds to each one's first step, to the end, and memory on the way."""
    first_step_s: dict[str, float] = {}
    peak: dict[str, int] = {}
    async with operator(stack) as client:
        submitted = time.time()
        tasks = [await client.submit(spec) for spec in specs]

        async def sample() -> None:
            while True:
                for name, mib in memory_mib(stack).items():
                    peak[name] = max(mib, peak.get(name, 0))
                await asyncio.sleep(SAMPLE_S)

        sampled = 0
        sampling = asyncio.create_task(sample())
        async for event in client.watch(*tasks):
            if event.event == "step":
                sampled += int(str(event.data["sampled_tokens"]))
                first_step_s.setdefault(event.task.rsplit("-", 1)[0], round(event.at_s - submitted, 1))
        sampling.cancel()
    took = time.time() - submitted
    return {
        "first_step_s": first_step_s,
        "steps": (steps := sum(spec.steps for spec in specs)),
        "all_steps_s": round(took, 1),
        "steps_per_s": round(steps / took, 2),
        "sampled_tokens_per_s": round(sampled / took),
        "peak_mib": peak,
        "peak_total_mib": peak["total"],
    }


def memory_mib(stack: Stack) -> dict[str, int]:
    """Proportional set size (shared pages counted once) of each component with its children."""
    found: dict[str, int] = {}
    for component in stack.components:
        if component.process is not None and psutil.pid_exists(component.process.pid):
            root = psutil.Process(component.process.pid)
            found[component.name] = sum(usage.pss_bytes(process) for process in usage.family(root)) >> 20
    found["supervisor"] = usage.pss_bytes(psutil.Process(stack.supervisor.pid)) >> 20
    return found | {"total": sum(found.values())}


if __name__ == "__main__":
    main()
