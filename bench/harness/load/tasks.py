"""Tasks with injected times: their submission, and waiting for them."""

import asyncio

import psycopg

from bench.harness.load.injected import Work
from bench.harness.load.standins import POOL
from bench.harness.services import BenchError, Services
from common import streams
from common.bus import Bus, Outgoing
from common.messages import Event, SubmitTask


def submission(name: str, work: Work) -> Outgoing:
    """A strictly on-policy task with injected times; each has its own tenant."""
    spec = {
        "name": name,
        "tenant": name,
        "pool": POOL,
        "steps": work.steps,
        "environment": {"name": "bench.harness.load.waiting:WaitingEnvironment", "options": {"turns": work.turns}},
        "sampling": {"max_tokens": 16},
        "limits": {"max_turns": work.turns, "max_prompt_tokens": 64, "max_reply_tokens": 16, "episode_timeout_s": 3600},
        "algorithm": {"group_size": work.group_size, "groups_per_step": work.groups_per_step, "max_staleness": 0},
    }
    return Outgoing(streams.job("submit", name), SubmitTask(task=name, tenant=name, spec=spec), f"submit:{name}")


async def scheduler_knows(running: Services, wanted: set[str]) -> None:
    """Returns once the scheduler has seen replicas of these services."""
    async with asyncio.timeout(60):
        async with await psycopg.AsyncConnection.connect(running.postgres_url, autocommit=True) as connection:
            while not wanted <= {row[0] for row in await (await connection.execute("SELECT service FROM replicas")).fetchall()}:  # noqa: ASYNC110
                await asyncio.sleep(0.1)


async def all_finished(bus: Bus, names: set[str]) -> dict[str, float]:
    """Time at which each task finished. Raises: BenchError when one ended otherwise."""
    ended: dict[str, float] = {}
    async for delivery in bus.streams.follow(streams.EVENTS, "events.>"):
        event = delivery.read(Event)
        if event.event in ("failed", "rejected", "cancelled"):
            raise BenchError(f"task {event.task} {event.event}: {event.data}")
        if event.event == "finished":
            ended[event.task] = event.at_s
            if ended.keys() == names:
                return ended
    raise BenchError("the event stream ended")
