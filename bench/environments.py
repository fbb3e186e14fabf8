"""Costs of one replica of the environment service: time per turn, and memory with 1,000 slow episodes.

python -m bench.environments [--episodes N] [--turns N]     prints JSON

It starts a NATS server and one replica as a process of its own, and stands in for the sampler. A turn's time runs from the
publishing of a sampled turn to the arrival of the request for the next one, NATS included both ways. The environment is
`synthetic`, first without latency, then with two seconds a turn and every episode in flight at once, wave after wave.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil

from bench.harness.load.groups import group_context
from bench.harness.report import machine
from bench.harness.services import nats
from common import streams
from common.bus import Bus, Delivery, Outgoing, Slots
from common.messages import GroupContext, OpenGroup, ReplicaReport, SampledTurn, SampleTurns, TrajectoriesScored, TurnRequest, TurnsSampled
from common.spec import EnvironmentSection, Limits
from common.task_states import TaskStates
from env_svc.execution.executor import EnvironmentExecutor
from env_svc.execution.tool_calls import ToolCallExecutor
from env_svc.execution.workers import Workers
from env_svc.service import EnvService
from env_svc.tools.toolbox import Toolbox

GROUP = 8
WARM_UP_TURNS = 100
REPLY_TOKENS = 100
LATENCY_S = 2.0
WAVES = 6
"""Waves of episodes, one after the other, to expose leaks of memory."""
START_TIMEOUT_S = 120.0


class AnsweringSampler:
    """Answers every request for a turn at once, or notes its arrival."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.answers = True
        self.arrived: asyncio.Queue[tuple[float, SampleTurns]] = asyncio.Queue()

    async def take(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        arrived_at = time.perf_counter()
        message = delivery.read(SampleTurns)
        if not self.answers:
            self.arrived.put_nowait((arrived_at, message))
            return
        for request in message.members:
            yield turn_of(message.group, request)


def turn_of(group: GroupContext, request: TurnRequest) -> Outgoing:
    """One member's turn, of REPLY_TOKENS tokens, in the rollout service's form."""
    transcript = request.transcript.with_context([1] * 20).with_sampled([2] * REPLY_TOKENS, [-0.5] * REPLY_TOKENS)
    turn = SampledTurn(
        member=request.member, turn=request.turn, transcript=transcript, reply="a" * REPLY_TOKENS, finish="stop", state=request.state
    )
    subject = streams.turn(group.family, group.task, group.trajectory(request.member))
    name = f"turn:{group.task}:{group.group}:{request.member}.{request.turn}"
    return Outgoing(subject, TurnsSampled(group=group, members=[turn]), name)


def group_of(task: str, number: int, *, size: int, turns: int, latency_s: float) -> GroupContext:
    return group_context(
        task,
        number,
        tenant="bench",
        pool="bench",
        size=size,
        family="synthetic",
        environment=EnvironmentSection(name="synthetic", options={"turns": turns, "latency_s": latency_s}),
        limits=Limits(max_turns=256),
        deadline_s=time.time() + 3600,
    )


async def open_group(bus: Bus, group: GroupContext) -> None:
    subject = streams.open_group(group.family, group.task, group.group)
    await bus.publish(Outgoing(subject, OpenGroup(group=group), f"open:{group.task}:{group.group}"))


async def handler_ms(turns: int) -> float:
    """Median milliseconds of the handler alone, from a message's bytes to those of the next."""
    service = EnvService(
        ToolCallExecutor(EnvironmentExecutor(Workers(1, ["synthetic"], 2**30), 60.0), Toolbox()), TaskStates(), lambda _: time.time()
    )  # no worker is started
    group = group_of("handler", 0, size=1, turns=256, latency_s=0.0)
    subject = streams.open_group(group.family, group.task, group.group)
    [opened] = [out async for out in service.open(Delivery(subject, {}, OpenGroup(group=group).encode(), 1, 1))]
    assert isinstance(opened.message, SampleTurns)
    asked = turn_of(group, opened.message.members[0])
    body = asked.message.encode()
    took: list[float] = []
    for _ in range(WARM_UP_TURNS + turns):
        started = time.perf_counter()
        async for out in service.turn(Delivery(asked.subject, {}, body, 1, 1)):
            out.message.encode()
        took.append((time.perf_counter() - started) * 1000)
    return round(statistics.median(took[WARM_UP_TURNS:]), 2)


async def overhead_ms(sampler: AnsweringSampler, turns: int) -> dict[str, float]:
    """Milliseconds from message in to message out, with one turn in flight."""
    sampler.answers = False
    group = group_of("overhead", 0, size=1, turns=256, latency_s=0.0)
    await open_group(sampler.bus, group)
    _, message = await sampler.arrived.get()
    first = message.members[0]
    took: list[float] = []
    for number in range(WARM_UP_TURNS + turns):
        request = first.model_copy(update={"turn": number % 200, "member": number // 200})
        started = time.perf_counter()
        await sampler.bus.publish(turn_of(group, request))
        arrived_at, _ = await sampler.arrived.get()
        took.append((arrived_at - started) * 1000)
    sampler.answers = True
    took = sorted(took[WARM_UP_TURNS:])
    return {"median": round(statistics.median(took), 2), "p90": round(took[int(0.9 * len(took))], 2), "turns": turns}


async def crowd(sampler: AnsweringSampler, replica: psutil.Process, episodes: int, turns: int, task: str) -> dict[str, object]:
    """Time and the replica's memory for `episodes` at once, each with `turns` turns of two seconds."""
    groups = [group_of(task, number, size=GROUP, turns=turns, latency_s=LATENCY_S) for number in range(episodes // GROUP)]
    started = time.monotonic()
    memory: list[int] = []

    async def sample() -> None:
        while True:
            memory.append(replica.memory_info().rss >> 20)
            await asyncio.sleep(LATENCY_S / 4)

    sampling = asyncio.create_task(sample())
    for group in groups:
        await open_group(sampler.bus, group)
    left = episodes
    async for delivery in sampler.bus.streams.follow(streams.SCORED, f"trajectories.scored.{task}.>"):
        left -= len(delivery.read(TrajectoriesScored).members)
        if left <= 0:
            break
    sampling.cancel()
    took_s = time.monotonic() - started
    return {"took_s": round(took_s, 1), "turns_per_s": round(episodes * turns / took_s, 1), "peak_mib": max(memory)}


async def measured(nats_url: str, replica: psutil.Process, episodes: int, turns: int) -> dict[str, object]:
    async with await Bus.connect(nats_url, "bench") as bus:
        await bus.declare()
        async with asyncio.timeout(START_TIMEOUT_S):
            while not await bus.kv.values(streams.REPLICAS_BUCKET, ReplicaReport):  # noqa: ASYNC110  # another process comes up
                await asyncio.sleep(0.1)
        sampler = AnsweringSampler(bus)
        consuming = asyncio.create_task(bus.consume(streams.rollout_samples("bench"), sampler.take, Slots(4096)))
        turn_ms, idle_mib = await overhead_ms(sampler, 1000), replica.memory_info().rss >> 20
        result: dict[str, object] = {
            "handler_ms": await handler_ms(1000),
            "turn_ms": turn_ms,
            "episodes_at_once": episodes,
            "turns_each": turns,
            "ideal_s": turns * LATENCY_S,
            "idle_mib": idle_mib,
            "waves": [await crowd(sampler, replica, episodes, turns, f"wave-{number}") for number in range(WAVES)],
        }
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=1000, help="episodes at once")
    parser.add_argument("--turns", type=int, default=5, help="turns of each")
    options = parser.parse_args()
    if options.episodes * options.turns <= 2 * WARM_UP_TURNS:
        parser.error(f"--episodes times --turns must be above {2 * WARM_UP_TURNS}: the first {WARM_UP_TURNS} turns are not counted")
    with (
        tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder,
        nats(Path(folder)) as url,
        (Path(folder) / "log").open("ab") as log,
    ):
        settings = {"MARLAAS_NATS_URL": url, "MARLAAS_ENV_FAMILIES": "synthetic", "MARLAAS_ENV_WORKERS": "2"}
        replica = subprocess.Popen([sys.executable, "-m", "env_svc"], env=os.environ | settings, stdout=log, stderr=log)
        try:
            result = asyncio.run(measured(url, psutil.Process(replica.pid), options.episodes, options.turns))
        finally:
            replica.terminate()
            replica.wait()
    print(json.dumps({"machine": machine()} | result, indent=2))


if __name__ == "__main__":
    main()
