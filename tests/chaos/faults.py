"""Kinds of faults. Each runs on a stack and returns at its end; the harness measures recovery."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from tests.chaos import message_faults, network_faults, process_faults
from tests.chaos.process_faults import JUMP_S
from tests.chaos.target import SERVERS, SERVICES, Target
from tests.support import disk

CRASHES = (
    ("scheduler", "before_ack"),
    ("scheduler", "after_commit"),
    ("scheduler", "before_forget"),
    ("env", "before_publish"),
    ("env", "before_ack"),
    ("rollout-tiny", "before_publish"),
    ("rollout-tiny", "before_ack"),
    ("trainer-tiny", "after_blobs"),
    ("trainer-tiny", "before_publish"),
    ("trainer-tiny", "before_ack"),
)
"""Every window between two effects that are not one transaction (`common/resilience/crashpoints.py`)."""
SLOW_STARTERS = ("env", "rollout-tiny", "trainer-tiny")
MIN_FULL_S, MAX_FULL_S = 2.0, 8.0


@dataclass(frozen=True)
class Fault:
    """One kind of fault."""

    kind: str
    do: Callable[[Target], Awaitable[None]]

    @property
    def is_slow(self) -> bool:
        """It restarts a service whose start is slow."""
        return self.kind.startswith(("kill", "crash")) and any(name in self.kind for name in SLOW_STARTERS)


def series(kinds: list[Fault], random: Random, count: int) -> list[Fault]:
    """`count` faults in rounds, in an order that the seed decides: every kind once; then slow ones in every third round only."""
    found: list[Fault] = []
    quick = [kind for kind in kinds if not kind.is_slow]
    round_ = 0
    while len(found) < count:
        these = kinds if round_ % 3 == 0 or not quick else quick
        found += random.sample(these, len(these))
        round_ += 1
    return found[:count]


def kinds_for(target: Target, live_tasks: Callable[[], Awaitable[list[str]]]) -> list[Fault]:
    """All kinds that this machine allows."""

    async def garbage(target: Target) -> None:
        await message_faults.garbage(target, await live_tasks())

    found = [
        *(Fault(f"kill {name}", partial(process_faults.kill, name=name)) for name in (*SERVICES, *SERVERS)),
        *(Fault(f"stop {name}", partial(process_faults.stop_for_a_while, name=name)) for name in (*SERVICES, *SERVERS)),
        *(Fault(f"crash {name} {point}", partial(process_faults.crash, service=name, point=point)) for name, point in CRASHES),
        *(Fault(f"cut {wire}", partial(network_faults.cut, wire=wire)) for wire in target.wires),
        *(Fault(f"silence {wire}", partial(network_faults.silence, wire=wire)) for wire in target.wires),
        *(Fault(f"half-close {wire}", partial(network_faults.half_close, wire=wire)) for wire in target.wires),
        *(Fault(f"slow {server}", partial(network_faults.slow, server=server)) for server in SERVERS),
        *(Fault(f"throttle {server}", partial(network_faults.throttle, server=server)) for server in SERVERS),
        Fault("duplicate messages", message_faults.duplicate),
        Fault("late and reordered messages", message_faults.delay),
        Fault("truncated messages", message_faults.truncate),
        Fault("garbage messages", garbage),
    ]
    if target.clocks is not None:
        for name in (*SERVICES, "postgres"):
            found.append(Fault(f"clock ahead {name}", partial(process_faults.jump, name=name, ahead_s=JUMP_S)))
            found.append(Fault(f"clock back {name}", partial(process_faults.jump, name=name, ahead_s=-JUMP_S)))
    if target.disk is not None:
        found.append(Fault("full disk", full_disk))
    return found


async def full_disk(target: Target) -> None:
    """NATS can write nothing: no message, no blob."""
    assert target.disk is not None
    try:
        disk.fill(target.disk)
        await target.pass_time(MIN_FULL_S, MAX_FULL_S)
    finally:
        disk.empty(target.disk)
