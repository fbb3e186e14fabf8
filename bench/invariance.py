"""Equality of a task's training, alone and beside others, to the last byte.

    python -m bench.invariance [--steps 12] [--conditions …]     writes invariance.json

Three tasks of three environments, strictly on policy (max_staleness 0), each alone on a stack; then all three together; all
three beside thirteen more; with sampler, environment and trainer killed; on two samplers; and beside 20 served requests a second, of the
base model and of the tasks' latest versions. With some of these `--conditions` only, the result's name has them. Compared are the digests
of the last version's adapter and of its optimizer state, which prove every version before. Exit status 1 where one differs, or where the
engine is not invariant on this machine, which it finds by itself at its start.
"""

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.harness import part, report
from bench.harness.keys import keys_of, operator
from bench.harness.services import BenchError, local_stack
from bench.harness.tenants import admin
from bench.isolation import OTHERS, spec
from bench.serving.http import TEXT, Answer, ask, session
from common import streams
from common.blobs import Blobs
from common.bus import Bus
from common.messages import WeightUpdated
from common.spec import TaskSpec
from marlaas.stack.state_files import Stack
from trainer_svc.state.checkpoint import read_manifest

NAME = "invariance"
KILLED = ("rollout_svc", "env_svc", "trainer_svc")
KILL_EVERY_S = 6.0
SERVED_RATE = 20
"""Requests a second."""
SUBJECTS = (0, 1, 3)
"""Environments of the compared tasks, in `bench.isolation.GYM`."""


def subject(environment: int, steps: int) -> TaskSpec:
    sections = {"algorithm": {"groups_per_step": 4, "max_staleness": 0}, "lora": {"rank": 8}}
    return spec(f"subject-{environment}", 7, steps, environment, sections)


def companion(number: int) -> TaskSpec:
    return spec(f"companion-{number}", 100 + number, 1000, number % 4, OTHERS[number % len(OTHERS)])


# ------------------------------------------------------------------------------------------------------------- digests


async def digests(url: str, task: str, pool: str = "tiny", creds: Path | None = None) -> dict[str, str]:
    """Digests of the task's latest adapter and optimizer state, from the manifest of its checkpoint. `creds`: the operator's."""
    async with await Bus.connect(url, "bench", creds=creds) as bus:
        last = await bus.streams.last(streams.WEIGHTS, streams.weight_updated(pool, task))
        assert last is not None
        updated = last.read(WeightUpdated)
        with tempfile.TemporaryDirectory() as folder:
            manifest = read_manifest(await Blobs(bus).fetch_folder(updated.checkpoint, Path(folder) / "checkpoint"))
        return {"version": str(updated.version), "adapter": str(manifest.adapter_sha256), "state": manifest.state_sha256}


# --------------------------------------------------------------------------------------------------------------- stack


async def train(
    stack: Stack, specs: Sequence[TaskSpec], condition: "Condition", served: list[Answer] | None = None
) -> dict[str, dict[str, str]]:
    """Digests of these tasks by name, trained together. `served`: gets the answers to requests meanwhile."""
    served = [] if served is None else served
    async with operator(stack) as client:
        companions = [await client.submit(companion(number)) for number in range(condition.others)]
        tasks = {one.name: await client.submit(one) for one in specs}
        disturbers = [asyncio.create_task(_kill(stack))] if condition.kill else []
        models = [("tiny", specs[0].tenant), *((f"{tasks[one.name]}@latest", one.tenant) for one in specs)]
        disturbers += [asyncio.create_task(_serve(stack, models, served))] if condition.serve else []
        try:
            for name, task in tasks.items():
                status = await client.wait(task)
                assert status.state == "finished", (name, status)
        finally:
            for disturber in disturbers:
                disturber.cancel()
            for task in companions:
                await client.cancel(task, "the compared tasks have ended")
        if condition.serve and not any(answer.is_complete for answer in served):
            raise BenchError(f"no request was served beside the tasks: {Counter(answer.error for answer in served)}")
        return {name: await digests(stack.nats_url, task, creds=stack.operator_key) for name, task in tasks.items()}


async def _kill(stack: Stack) -> None:
    """Kill each service once, one after the other; the supervisor restarts it."""
    for package in KILLED:
        await asyncio.sleep(KILL_EVERY_S)
        for process in psutil.Process(stack.supervisor.pid).children():
            with suppress(psutil.NoSuchProcess):
                if package in process.cmdline():
                    process.kill()


async def _serve(stack: Stack, models: Sequence[tuple[str, str]], served: list[Answer]) -> None:
    """Ask these models of tenants in turn at a fixed rate, until cancelled. A task has no version before its first step."""
    began = time.monotonic()
    async with session(await admin(stack.nats_url, keys_of(stack), [stack.gateway.url])) as http, asyncio.TaskGroup() as asking:
        for number in itertools.count():
            model, tenant = models[number % len(models)]
            body = {"model": model, "prompt": f"What is {number} + 7?", "max_tokens": 16, "seed": number}
            served.append(Answer())
            asking.create_task(ask(http, stack.gateway.url, TEXT, body, served[-1], tenant=tenant))
            await asyncio.sleep(max(0.0, began + (number + 1) / SERVED_RATE - time.monotonic()))


@dataclass(frozen=True)
class Condition:
    """What runs while the compared tasks are trained together."""

    others: int = 0
    kill: bool = False
    samplers: int = 1
    serve: bool = False


CONDITIONS = {
    "beside 2": Condition(),
    "beside 15": Condition(others=13),
    "killed": Condition(kill=True),
    "two samplers": Condition(samplers=2),
    "served": Condition(serve=True),
}


def condition_of(name: str) -> Condition:
    """A named condition, or `beside N` for any other number."""
    return CONDITIONS.get(name) or Condition(others=int(name.removeprefix("beside ")) + 1 - len(SUBJECTS))


def compare(pools: Path, steps: int, conditions: Sequence[str]) -> dict[str, Any]:
    """Digests of every subject under every condition; `equal` where all are those of the task alone."""
    specs = [subject(environment, steps) for environment in SUBJECTS]
    alone: dict[str, dict[str, str]] = {}
    found: dict[str, Any] = {}
    with local_stack(pools) as stack:
        for one in specs:
            alone |= asyncio.run(train(stack, [one], Condition()))
            part.keep({"alone": alone})
    for name in conditions:
        condition, served = condition_of(name), list[Answer]()
        with local_stack(pools, samplers=condition.samplers) as stack:
            started = time.monotonic()
            digests = asyncio.run(train(stack, specs, condition, served))
            took_s = time.monotonic() - started
        found[name] = {"equal": digests == alone, "took_s": round(took_s, 1), "digests": digests}
        if condition.serve:
            answers = Counter("complete" if answer.is_complete else answer.error or "not ended" for answer in served)
            found[name] |= {"requests_per_s": round(len(served) / took_s, 1), "requests": dict(answers)}
        print(f"{name}: {'equal' if digests == alone else 'DIFFERENT'}", file=sys.stderr, flush=True)
        part.keep({"alone": alone} | found)
    return {"alone": alone} | found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conditions", type=lambda text: text.split(","), default=list(CONDITIONS))
    parser.add_argument("--pools", type=Path, default=report.ROOT / "pools.toml", help="with invariant = false tasks differ")
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    result: dict[str, Any] = {"machine": report.machine(), "steps": options.steps}
    result |= compare(options.pools, options.steps, options.conditions)
    name = NAME if set(options.conditions) == set(CONDITIONS) else "-".join((NAME, *options.conditions)).replace(" ", "-")
    print(f"written: {report.write(name, result)}")
    sys.exit(not all(result[name]["equal"] for name in options.conditions))


if __name__ == "__main__":
    main()
