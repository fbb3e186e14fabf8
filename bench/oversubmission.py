"""A hundred times more work than capacity: `python -m bench.oversubmission`. Writes bench/results/oversubmission.json.

All tasks are submitted at once, to a sampler that takes injected times; meanwhile the memory of each process and the messages in
flight are sampled. `submitted` is the memory of waiting tasks; `most` is the maximum while they run.
"""

import argparse
import asyncio
from typing import Any

import psycopg

from bench.harness import report
from bench.harness.load.injected import Times, Work
from bench.harness.load.standins import Trace, at_work
from bench.harness.load.tasks import all_finished, scheduler_knows, submission
from bench.harness.services import Services, postgres, services
from common import streams
from common.bus import Bus

TIMES = Times(0.2, 0.05, 0.02)
LOOK_EVERY_S = 1.0
MAX_DURATION_S = 900.0
IN_FLIGHT = "SELECT count(*) FROM trajectories t JOIN groups g ON g.task = t.task AND g.number = t.group WHERE g.state = 'open'"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--places", type=int, default=8, help="sequences that the sampler takes at once")
    parser.add_argument("--times", type=int, default=100, help="as many trajectories are submitted at once, for each place")
    options = parser.parse_args()
    result: dict[str, Any] = {"machine": report.machine(), "options": vars(options)}
    work = Work(options.places * options.times // 4, 1, 2, 2, 2, options.places)
    with postgres() as (folder, server), services(folder, server, work.places, {}) as running:
        result |= asyncio.run(_worked_off(running, work))
    print(result)
    print(f"written: {report.write('oversubmission', result)}")


async def _worked_off(running: Services, work: Work) -> dict[str, Any]:
    names = [f"t{number:04}" for number in range(work.tasks)]
    memory: list[dict[str, int]] = []
    messages: list[int] = []
    trajectories: list[int] = []
    async with await Bus.connect(running.nats_url, "bench", creds=running.creds) as bus:
        await scheduler_knows(running, {"env"})
        memory.append(running.memory_bytes())
        await asyncio.gather(*(bus.publish(submission(name, work)) for name in names))
        async with await psycopg.AsyncConnection.connect(running.postgres_url, autocommit=True) as connection:
            while await _count(connection, "SELECT count(*) FROM tasks WHERE state = 'running'") < work.tasks:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_EVERY_S)
            memory.append(running.memory_bytes())
            async with at_work(bus, TIMES, work.places, Trace()), asyncio.timeout(MAX_DURATION_S):
                finished = asyncio.ensure_future(all_finished(bus, set(names)))
                while not finished.done():
                    memory.append(running.memory_bytes())
                    messages.append(sum([await bus.streams.backlog(stream) for stream in (streams.PROMPTS, streams.TURNS)]))
                    trajectories.append(await _count(connection, IN_FLIGHT))
                    await asyncio.sleep(LOOK_EVERY_S)
                await finished
    return {
        "tasks": work.tasks,
        "trajectories": work.tasks * work.groups_per_step * work.group_size,
        "looks": len(messages),
        "in_flight": {"messages_most": max(messages), "trajectories_most": max(trajectories)},
        "memory_mib": {
            name: {
                "before": _mib(memory[0][name]),
                "submitted": _mib(memory[1][name]),
                "most": _mib(max(look[name] for look in memory)),
                "end": _mib(memory[-1][name]),
            }
            for name in memory[0]
        },
    }


async def _count(connection: psycopg.AsyncConnection, query: str) -> int:
    return int((await (await connection.execute(query.encode())).fetchone() or (0,))[0])


def _mib(size: int) -> float:
    return round(size / 2**20, 1)


if __name__ == "__main__":
    main()
