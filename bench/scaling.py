"""The same set of tasks under the three scheduling policies: `python -m bench.scaling`.

Real scheduler, NATS, PostgreSQL and environment service; sampler, environment and trainer take injected times (`injected.py`),
so that only scheduling and machinery are measured. Writes bench/results/scaling.json and plots to docs/images.

    python -m bench.scaling [--tasks 1,2,4,8,16,32] [--policies asynchronous,synchronous,sequential] [--runs 3]
    python -m bench.scaling --tasks 1000 --policies asynchronous --runs 1 --steps 2 --train 0 --name scaling-1000

The largest number of tasks is run `--runs` times, the others once; `--quick` takes a minute.
"""

import argparse
import asyncio
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psycopg

from bench.charts.policy_tables import POLICIES
from bench.harness import report
from bench.harness.load.injected import LowerBounds, Times, Work, lower_bounds
from bench.harness.load.standins import Trace, at_work
from bench.harness.load.tasks import all_finished, scheduler_knows, submission
from bench.harness.measures import timeline
from bench.harness.services import BenchError, Services, postgres, run_or_exit, services
from common.bus import Bus

DRAWN_TASKS = 8
"""Number of tasks of the run whose timeline is drawn."""
PATIENCE, PATIENCE_S = 8.0, 120.0
"""Maximum duration of a run: a multiple of its lower bound, and further seconds."""


def main() -> None:
    options = arguments()
    machine = report.machine()
    times = Times(options.sample, options.environment, options.train)
    runs: list[dict[str, Any]] = []
    failed: list[str] = []
    with postgres() as (folder, server):
        for tasks in options.tasks:
            work = Work(tasks, options.steps, options.groups, options.size, options.turns, options.places)
            for policy in options.policies:
                for number in range(options.runs if tasks == max(options.tasks) else 1):
                    try:
                        runs.append(one_run(folder, server, policy, times, work) | {"run": number})
                        print(line(runs[-1]), flush=True)
                    except BenchError as error:
                        failed.append(str(error))
                        print(f"failed: {error}", flush=True)
    result = {"machine": machine, "times": asdict(times), "options": vars(options), "runs": runs, "failed": failed}
    path = report.write(options.name, without_lanes(result))
    print(f"written: {path}")
    if len({run["tasks"] for run in runs}) > 1:
        from bench.charts import results

        for plot in results.draw_scaling(result):
            print(f"drawn: {plot}")
    if failed:
        raise BenchError(f"{len(failed)} runs failed")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--policies", type=lambda text: text.split(","), default=list(POLICIES))
    parser.add_argument("--runs", type=int, default=3, help="runs of the largest number of tasks")
    parser.add_argument("--steps", type=int, default=4, help="steps of each task")
    parser.add_argument("--groups", type=int, default=2, help="groups a step")
    parser.add_argument("--size", type=int, default=4, help="members of a group")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--places", type=int, default=128, help="sequences that the sampler decodes at once")
    parser.add_argument("--sample", type=float, default=0.08, help="mean seconds of sampling a turn")
    parser.add_argument("--environment", type=float, default=0.2, help="mean seconds of the environment after a turn")
    parser.add_argument("--train", type=float, default=0.05, help="seconds of a step")
    parser.add_argument("--name", default="scaling", help="name of the result")
    parser.add_argument("--quick", action="store_true", help="1, 4 and 8 tasks of 2 steps, once")
    options = parser.parse_args()
    if options.quick:
        options.tasks, options.steps, options.runs = [1, 4, 8], 2, 1
    return options


def one_run(folder: Path, server: Any, policy: str, times: Times, work: Work) -> dict[str, Any]:
    """One set of tasks from submission to end. Raises: BenchError when a task does not finish."""
    names = [f"t{number:04}" for number in range(work.tasks)]
    best = lower_bounds(times, work, names)
    with services(folder, server, work.places, {"MARLAAS_SCHEDULER_POLICY": policy}) as running:
        return asyncio.run(_measure(running, policy, times, work, best, names))


async def _measure(running: Services, policy: str, times: Times, work: Work, best: LowerBounds, names: list[str]) -> dict[str, Any]:
    trace = Trace()
    async with await Bus.connect(running.nats_url, "bench", creds=running.creds) as bus:
        least_s = {"asynchronous": best.asynchronous, "synchronous": best.synchronous, "sequential": best.sequential}[policy]
        async with at_work(bus, times, work.places, trace):
            await scheduler_knows(running, {"rollout", "env"})
            cpu_before = running.cpu_s()
            submitted_at = time.time()
            await asyncio.gather(*(bus.publish(submission(name, work)) for name in names))
            try:
                async with asyncio.timeout(PATIENCE_S + PATIENCE * least_s):
                    ended_at = await all_finished(bus, set(names))
            except TimeoutError:
                raise BenchError(f"{policy}, {work.tasks} tasks: not finished after {PATIENCE_S + PATIENCE * least_s:.0f} s") from None
            cpu = {name: round(after - cpu_before[name], 2) for name, after in running.cpu_s().items()}
            memory = running.memory_bytes()
    with psycopg.connect(running.postgres_url) as connection:
        steps = connection.execute(
            "SELECT task, version, extract(epoch FROM first_admitted_at)::float, finished_epoch, staleness_max FROM"
            " (SELECT *, extract(epoch FROM finished_at)::float AS finished_epoch FROM steps) s ORDER BY task, version"
        ).fetchall()
    if len(steps) != work.tasks * work.steps:
        raise BenchError(f"{len(steps)} steps were taken, expected {work.tasks * work.steps}")
    end_to_end_s = max(ended_at.values()) - submitted_at
    sampler, trainer = timeline.uses(trace, submitted_at, ended_at, work.places)
    per_step = timeline.step_times([(task, version, admitted, done) for task, version, admitted, done, _ in steps])
    first_steps = [done - submitted_at for _, version, _, done, _ in steps if version == 0]
    begun = {span.task: span.started_at for span in sorted(trace.sampled, key=lambda span: -span.started_at)}
    return {
        "policy": policy,
        "tasks": work.tasks,
        "end_to_end_s": round(end_to_end_s, 3),
        "limit_s": round(least_s, 3),
        "limits_s": {name: value and round(value, 3) for name, value in asdict(best).items()},
        "busiest": best.busiest if policy == "asynchronous" else "policy",
        "share_of_limit": round(least_s / end_to_end_s, 4),
        "sampler": asdict(sampler),
        "trainer": asdict(trainer),
        "steps_per_s": round(len(steps) / end_to_end_s, 3),
        "turns_per_s": round(len(trace.sampled) / end_to_end_s, 1),
        "first_turn_s": report.spread([at - submitted_at for at in begun.values()]),
        "first_step_s": report.spread(first_steps),
        "step_s": report.spread(per_step),
        "staleness_max": max(staleness for *_, staleness in steps),
        "cpu_s": cpu,
        "load": round(os.getloadavg()[0], 1),
        "memory_mib": {name: size >> 20 for name, size in memory.items()},
        "lanes": timeline.lanes(trace, submitted_at) if work.tasks == DRAWN_TASKS else None,
    }


def without_lanes(result: dict[str, Any]) -> dict[str, Any]:
    """What is kept: not the spans that are drawn."""
    return result | {"runs": [{name: value for name, value in run.items() if name != "lanes"} for run in result["runs"]]}


def line(found: dict[str, Any]) -> str:
    return (
        f"{found['tasks']:>5} tasks  {found['policy']:<12}  {found['end_to_end_s']:8.2f} s  limit {found['limit_s']:8.2f} s"
        f"  ({found['share_of_limit']:.0%} of it)  sampler {found['sampler']['busy']:.0%}  trainer {found['trainer']['busy']:.0%}"
        f"  first step {found['first_step_s']['p50']:.2f} s  step p50 {found['step_s']['p50']:.2f} s  {found['turns_per_s']:.0f} turns/s"
    )


if __name__ == "__main__":
    run_or_exit("bench.scaling", main)
