"""Utilization of the sampler with slow tools: `python -m bench.slow_tools`. Writes bench/results/slow-tools.json.

Tools take ten times as long as sampling; the limit of work in flight is fixed, or follows the samplers (ADR 11). The
sampler takes injected times; scheduler, NATS, PostgreSQL and environments are the real ones.
"""

import argparse
import asyncio
from typing import Any

from bench.harness import report
from bench.harness.load.injected import Times, Work
from bench.harness.load.standins import Trace, at_work
from bench.harness.load.tasks import all_finished, scheduler_knows, submission
from bench.harness.services import Services, postgres, services
from common.bus import Bus

FIXED = {"MARLAAS_SCHEDULER_MOST_OVERSUBSCRIPTION": "1"}
LOOK_AT_S = 30.0
"""Window before the first task's end, for the final rate."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=float, default=0.1, help="seconds of sampling a turn")
    parser.add_argument("--environment", type=float, default=1.0, help="seconds of the tool after it")
    parser.add_argument("--places", type=int, default=16, help="sequences that the sampler takes at once")
    parser.add_argument("--steps", type=int, default=10, help="of each of 16 tasks")
    options = parser.parse_args()
    result: dict[str, Any] = {"machine": report.machine(), "options": vars(options)}
    with postgres() as (folder, server):
        for way, settings, steps in (("fixed", FIXED, max(1, options.steps // 5)), ("following", {}, options.steps)):
            work = Work(16, steps, 2, 8, 3, options.places)
            with services(folder, server, options.places, settings) as running:
                result[way] = asyncio.run(_rate(running, Times(options.sample, options.environment, 0.0), work))
            print(f"{way}: {result[way]}", flush=True)
    print(f"written: {report.write('slow-tools', result)}")


async def _rate(running: Services, times: Times, work: Work) -> dict[str, float]:
    names = [f"t{number:04}" for number in range(work.tasks)]
    trace = Trace()
    async with (
        await Bus.connect(running.nats_url, "bench", creds=running.creds) as bus,
        at_work(bus, times, work.places, trace),
        asyncio.timeout(900),
    ):
        await scheduler_knows(running, {"rollout", "env"})
        await asyncio.gather(*(bus.publish(submission(name, work)) for name in names))
        ended = await all_finished(bus, set(names))
    until = min(ended.values())
    late = sum(until - LOOK_AT_S <= span.ended_at < until for span in trace.sampled) / LOOK_AT_S
    began = min(span.started_at for span in trace.sampled)
    return {
        "turns_per_s": round(late, 1),
        "places_busy": round(late * times.sample_s / work.places, 3),
        "seconds": round(max(ended.values()) - began, 1),
        "turns": len(trace.sampled),
    }


if __name__ == "__main__":
    main()
