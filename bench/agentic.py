"""The scheduling policies on the real one-machine stack: `python -m bench.agentic`. Writes bench/results/agentic.json and plots.

vLLM samples and the trainer trains the tiny model, each on a core of its own, without the stand-ins and injected times of
`bench.scaling`. Tasks are those of the workload `tools` of `bench.trl`: three turns, each answered after 0.2 to 2 s. They are
equal but for their seeds, strictly on policy, and the same under each policy, so all do the same work.

    python -m bench.agentic [--tasks 1,2,4,8,16,32] [--policies asynchronous,synchronous,sequential] [--runs 3] [--steps 3]

The largest number of tasks is run `--runs` times, the others once, on one stack a policy, after a task that warms it up; one
after the other, which takes a quarter of an hour with 32, `--sequential-runs` times. Stage times come from the tasks' messages
(`tap.py`) and from their steps' events.
"""

import argparse
import asyncio
import os
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from typing import Any

import psutil

from bench.charts.policy_tables import POLICIES
from bench.harness import part, report
from bench.harness.keys import measuring, operator
from bench.harness.load.standins import SampledSpan, Trace
from bench.harness.measures import cores, stages, timeline
from bench.harness.measures.tap import overheard, sampled_spans
from bench.harness.services import BenchError, local_stack, run_or_exit
from bench.scaling import DRAWN_TASKS, without_lanes
from bench.trl import LEARNING_RATE, WORKLOADS, spec
from common.spec import TaskSpec
from common.task_states import ENDED
from marlaas.client import ClientError
from marlaas.reporting.progress import TrainedStep, step_of
from marlaas.stack.state_files import Stack

WORKLOAD = "tools"
PATIENCE_S, STEP_PATIENCE_S = 120.0, 20.0
"""Maximum seconds of a run: a constant, and a share for each step of each task."""


def main() -> None:
    options = arguments()
    result: dict[str, Any] = {"machine": report.machine(), "options": vars(options)}
    runs: list[dict[str, Any]] = []
    failed: list[str] = []
    result |= {"runs": runs, "failed": failed}
    for policy in options.policies:
        try:
            with local_stack(settings={"MARLAAS_SCHEDULER_POLICY": policy}) as stack:
                result["cores"] = cores.pinned(stack)
                for found in runs_on(stack, policy, options):
                    runs.append(found)
                    print(line(found), flush=True)
        except BenchError as error:
            failed.append(f"{policy}: {str(error).splitlines()[0]}")  # later lines quote logs
            print(f"failed: {policy}: {error}", flush=True)
    if not runs:  # an earlier result stays
        raise BenchError("nothing was measured")
    result |= {"stages": stages.to_gain(runs), "engine_alone": engine_alone(max(options.tasks), runs[-1]["tokens_per_turn"])}
    print(f"written: {report.write(options.name, without_lanes(result))}")
    if len({run["tasks"] for run in runs}) > 1:
        from bench.charts import results

        for plot in results.draw_agentic(result):
            print(f"drawn: {plot}")
    if failed:
        raise BenchError(f"{len(failed)} policies failed")


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--policies", type=lambda text: text.split(","), default=list(POLICIES))
    parser.add_argument("--runs", type=int, default=3, help="runs of the largest number of tasks")
    parser.add_argument("--sequential-runs", type=int, default=1, help="runs of the largest number of tasks, one after the other")
    parser.add_argument("--steps", type=int, default=3, help="steps of each task")
    parser.add_argument("--groups", type=int, default=2, help="groups a step")
    parser.add_argument("--size", type=int, default=8, help="members of a group")
    parser.add_argument("--name", default="agentic", help="name of the result")
    parser.set_defaults(staleness=0, learning_rate=LEARNING_RATE)  # further options of `bench.trl`'s tasks
    return parser.parse_args(given)


def engine_alone(adapters: int, tokens_per_turn: float) -> dict[str, float]:
    """Throughput of the bare engine on one core, with turns about as long as the tasks'.

    It runs in a process of its own: vLLM leaves a gigabyte and threads behind.
    """
    tokens = max(1, round(tokens_per_turn))
    given = ["--tokens", str(tokens), "--adapters", str(adapters), "--cores", str(min(os.sched_getaffinity(0)))]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        tokens_per_s = process.submit(_engine_tokens_per_s, given, f"{adapters} adapters").result()
    return {"tokens_per_s": tokens_per_s, "tokens_per_turn": tokens, "adapters": adapters}


def _engine_tokens_per_s(given: list[str], case: str) -> int:
    from bench import engine

    return asyncio.run(engine.measure(engine.arguments(given)))[case]["tokens_per_s"]


def runs_on(stack: Stack, policy: str, options: argparse.Namespace) -> Generator[dict[str, Any]]:
    """Every run of a policy, after a warm-up run."""
    asyncio.run(measured(stack, policy, 1, argparse.Namespace(**vars(options) | {"steps": 1})))
    idle = cores.idle_shares(stack)
    repeated = options.sequential_runs if policy == "sequential" else options.runs
    for tasks in options.tasks:
        for number in range(repeated if tasks == max(options.tasks) else 1):
            found = asyncio.run(measured(stack, policy, tasks, options))
            draws = tasks == DRAWN_TASKS and number == 0
            yield {"run": number} | complete(found, idle, draws=draws)


@dataclass(frozen=True)
class PolicyRun:
    """One set of tasks from submission to end. Times are Unix seconds; tasks go by their names."""

    policy: str
    tasks: int
    submitted_s: float
    ended_s: dict[str, float]
    """Of an unfinished task the end of the observation."""
    unfinished: frozenset[str]
    steps: list[tuple[str, TrainedStep]]
    sampled: list[SampledSpan]
    groups_per_step: int
    cpu_s: dict[str, float]
    machine_cpu_s: float
    """Processor seconds of all processes on the cores, ours or not."""


async def measured(stack: Stack, policy: str, tasks: int, options: argparse.Namespace) -> PolicyRun:
    """Raises: BenchError when a task does not finish."""
    specs = [spec(WORKLOAD, options, number) for number in range(tasks)]
    patience_s = PATIENCE_S + STEP_PATIENCE_S * tasks * options.steps
    found = await observed(stack, policy, specs, options.groups, patience_s)
    if found.unfinished:
        raise BenchError(f"{tasks} tasks: not finished after {patience_s:.0f} s")
    turns = tasks * options.steps * options.groups * options.size * WORKLOADS[WORKLOAD]["turns"]
    if len(found.steps) != tasks * options.steps or len(found.sampled) < turns:
        seen = f"{len(found.steps)} steps and {len(found.sampled)} turns"
        raise BenchError(f"{tasks} tasks: {seen} were seen, expected {tasks * options.steps} and {turns}")
    return found


async def observed(stack: Stack, policy: str, specs: Sequence[TaskSpec], groups: int, most_s: float) -> PolicyRun:
    """The tasks until all have finished, or for `most_s` seconds. `groups`: of a step. Raises: BenchError when a task fails."""
    steps: list[tuple[str, TrainedStep]] = []
    ended: dict[str, float] = {}
    try:
        async with (
            operator(stack) as client,
            overheard(*measuring(stack)) as heard,
        ):
            cpu_before, machine_before = cores.cpu_s(stack), cores.machine_cpu_s()
            submitted_s = time.time()
            ids = await asyncio.gather(*(client.submit(one) for one in specs))
            names = {task: one.name for task, one in zip(ids, specs, strict=True)}
            with suppress(TimeoutError):
                async with asyncio.timeout(most_s):
                    async for event in client.watch(*ids):
                        if event.event == "step":
                            steps.append((names[event.task], step_of(event)))
                            tokens = sum(step.sampled_tokens for _, step in steps)
                            part.keep({"steps": len(steps), "sampled_tokens": tokens, "until_s": round(event.at_s - submitted_s, 2)})
                        elif event.event == "finished":
                            ended[names[event.task]] = event.at_s
                        elif event.event in ENDED:
                            raise BenchError(f"task {event.task} {event.event}: {event.data}")
            unfinished = frozenset(names.values()) - ended.keys()
            ended |= dict.fromkeys(unfinished, time.time())
            cpu = {name: after - cpu_before[name] for name, after in cores.cpu_s(stack).items()}
            machine_cpu_s = cores.machine_cpu_s() - machine_before
    except ClientError as error:
        raise BenchError(str(error)) from None
    except psutil.NoSuchProcess as error:
        raise BenchError(f"a service has ended while it was measured (its log says why): {error}") from None
    spans = [span for span in sampled_spans(heard) if span.task in names]
    sampled = [replace(span, task=names[span.task]) for span in spans]
    return PolicyRun(policy, len(specs), submitted_s, ended, unfinished, steps, sampled, groups, cpu, machine_cpu_s)


def complete(found: PolicyRun, idle: dict[str, float], *, draws: bool) -> dict[str, Any]:
    """The result of one run, as JSON."""
    took_s = max(found.ended_s.values()) - found.submitted_s
    trace = Trace(found.sampled, [stages.trained_span(task, step) for task, step in found.steps])
    # One place: the sampler is busy while it has any turn.
    sampler, trainer = timeline.uses(trace, found.submitted_s, found.ended_s, places=1)
    always_idle, _ = timeline.uses(trace, found.submitted_s, found.ended_s, places=sys.maxsize)
    tokens = sum(step.sampled_tokens for _, step in found.steps)
    times = [(task, step.version, step.first_admitted_s or 0.0, step.at_s) for task, step in found.steps]
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for task, step in sorted(found.steps, key=lambda one: one[1].version):
        rewards[task].append(round(step.reward or 0.0, 4))
    available = len(os.sched_getaffinity(0))
    ours_s = sum(found.cpu_s.values())
    return {
        "policy": found.policy,
        "tasks": found.tasks,
        "end_to_end_s": round(took_s, 2),
        "first_step_s": report.spread([done - found.submitted_s for _, version, _, done in times if version == 1]),
        "step_s": report.spread(timeline.step_times(times)),
        "staleness_max": max(step.staleness_max or 0.0 for _, step in found.steps),
        "steps_per_s": round(len(found.steps) / took_s, 3),
        "trajectories_per_s": round(sum(step.metrics["trajectories"] for _, step in found.steps) / took_s, 2),
        "tokens_per_s": round(tokens / took_s),
        "tokens_per_turn": round(tokens / len(found.sampled), 2),
        "sampler": asdict(sampler)
        | {"core": cores.busy_share(found.cpu_s["engine"] / took_s, idle["engine"]), "idle_core": idle["engine"]},
        "trainer": asdict(trainer)
        | {"core": cores.busy_share(found.cpu_s["trainer"] / took_s, idle["trainer"]), "idle_core": idle["trainer"]},
        "time_in": always_idle.idle_by_cause,
        "stages_s": stages.stage_times(trace, found.groups_per_step),
        "cpu_s": {name: round(spent, 2) for name, spent in found.cpu_s.items()},
        "cpu_s_per_step": round(ours_s / len(found.steps), 3),
        "cores_busy": round(ours_s / took_s / available, 4),
        "elsewhere": round(max(0.0, found.machine_cpu_s - ours_s) / took_s / available, 4),
        "load": round(os.getloadavg()[0], 1),
        "rewards": dict(sorted(rewards.items())),
        "lanes": timeline.lanes(trace, found.submitted_s) if draws else None,
    }


def line(run: dict[str, Any]) -> str:
    return (
        f"{run['tasks']:>5} tasks  {run['policy']:<12}  {run['end_to_end_s']:8.2f} s  first step {run['first_step_s']['p50']:.2f} s"
        f"  step p50 {run['step_s']['p50']:.2f} s  cores: sampler {run['sampler']['core']:.0%}, trainer {run['trainer']['core']:.0%}"
        f"  {run['tokens_per_s']} tokens/s  elsewhere {run['elsewhere']:.0%}"
    )


if __name__ == "__main__":
    run_or_exit("bench.agentic", main)
