"""Kinds of faults. Each is done to a running stack and returns when it is over; recovery is measured by the harness."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import psutil

from common import streams
from common.bus import Bus
from common.streams import KIND_HEADER
from marlaas.state import read_stack

SERVICES = ("scheduler", "env", "rollout-tiny", "trainer-tiny")
SERVERS = ("nats", "postgres")
CRASHES = (
    ("scheduler", "before_ack"),
    ("scheduler", "after_commit"),
    ("scheduler", "before_forget"),
    ("env", "before_publish"),
    ("env", "before_ack"),
    ("rollout-tiny", "before_ack"),
    ("trainer-tiny", "after_blobs"),
    ("trainer-tiny", "before_ack"),
)
SHORTEST_STOP_S, LONGEST_STOP_S = 2.0, 12.0
"""Around the bus's time-outs: 5 s for an answer of NATS, 10 s for the scheduler's messages to go to another replica."""
DUPLICATES_OF_A_STREAM = 20
LONGEST_WAY_TO_A_POINT_S = 40.0


@dataclass(frozen=True)
class Target:
    """What faults are done to."""

    data: Path
    nats_url: str
    tasks: tuple[str, ...]
    random: Random

    def armed(self, service: str) -> Path:
        return self.data / "armed" / service

    def restarts(self, name: str) -> int:
        stack = read_stack(self.data)
        return stack.component(name).restarts if stack else 0

    def tree(self, name: str) -> list[psutil.Process]:
        """The component's process and all below it; empty while it is between two lives."""
        stack = read_stack(self.data)
        process = stack.component(name).process if stack else None
        if process is None:
            return []
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(process.pid)
            return [root, *root.children(recursive=True)]
        return []


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong."""

    kind: str
    do: Callable[[Target], Awaitable[None]]


def series(random: Random, count: int) -> list[Fault]:
    """`count` faults: every kind once before any twice, in an order that the seed decides."""
    found: list[Fault] = []
    while len(found) < count:
        round_ = kinds()
        random.shuffle(round_)
        found += round_
    return found[:count]


def kinds() -> list[Fault]:
    return [
        *(Fault(f"kill {name}", lambda target, name=name: kill(target, name)) for name in (*SERVICES, *SERVERS)),
        *(Fault(f"stop {name}", lambda target, name=name: stop_for_a_while(target, name)) for name in (*SERVICES, *SERVERS)),
        *(Fault(f"crash {name} {point}", lambda target, name=name, point=point: crash(target, name, point)) for name, point in CRASHES),
        Fault("duplicate messages", duplicate_messages),
        Fault("garbage messages", garbage_messages),
    ]


async def kill(target: Target, name: str) -> None:
    for process in target.tree(name)[:1]:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


async def stop_for_a_while(target: Target, name: str) -> None:
    """SIGSTOP: its connections stay open and nobody answers."""
    tree = target.tree(name)
    try:
        for process in tree:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        await asyncio.sleep(target.random.uniform(SHORTEST_STOP_S, LONGEST_STOP_S))
    finally:
        for process in tree:
            with suppress(psutil.NoSuchProcess):
                process.resume()


async def crash(target: Target, service: str, point: str) -> None:
    """The service's next life ends at `point`; returns when it has, or did not get there in time."""
    armed = target.armed(service)
    before = target.restarts(service)
    armed.parent.mkdir(exist_ok=True)
    armed.write_text(f"{point}:{target.random.randint(1, 3)}")
    await kill(target, service)
    with suppress(TimeoutError):
        async with asyncio.timeout(LONGEST_WAY_TO_A_POINT_S):
            while target.restarts(service) < before + 2:
                await asyncio.sleep(0.1)


async def duplicate_messages(target: Target) -> None:
    """What waits or is kept is published again, under other ids."""
    bus = await Bus.connect(target.nats_url, "chaos")
    try:
        for stream in (*streams.IN_FLIGHT, streams.WEIGHTS):
            subjects = sorted(await bus.subjects(stream))
            for subject in target.random.sample(subjects, min(len(subjects), DUPLICATES_OF_A_STREAM)):
                if stored := await bus.last(stream, subject):
                    headers = {name: value for name, value in stored.headers.items() if not name.startswith("Nats-")}
                    await bus.publish_raw(subject, stored.body, f"again:{stream.name}:{stored.sequence}:{target.random.random()}", headers)
    finally:
        await bus.close()


async def garbage_messages(target: Target) -> None:
    """Bytes that are no message, on every subject that somebody reads, for every task."""
    bus = await Bus.connect(target.nats_url, "chaos")
    kinds_of = {
        "open-group.1": lambda task: streams.open_group("reasoning_gym", task, 0),
        "check-environment.1": lambda task: streams.check("reasoning_gym", task),
        "sample-turns.1": lambda task: streams.sample("tiny", task, "0-0"),
        "turns-sampled.1": lambda task: streams.turn("reasoning_gym", task, "0-0"),
        "environment-checked.1": streams.checked,
        "trajectories-scored.1": lambda task: streams.scored(task, "0-0"),
        "train-batch.1": lambda task: streams.batch("tiny", task),
        "weight-updated.1": lambda task: streams.weight_updated("tiny", task),
        "submit-task.1": lambda task: streams.submit("acme"),
        "dead-letter.1": lambda task: streams.failed("train", task),
    }
    try:
        for task in target.tasks:
            for kind, subject in kinds_of.items():
                body = target.random.randbytes(target.random.randint(0, 200))
                await bus.publish_raw(subject(task), body, f"garbage:{target.random.random()}", {KIND_HEADER: kind})
    finally:
        await bus.close()
