"""Faults of processes: killed, stopped for a while, dead at a crash point, with a clock that jumps."""

import asyncio
import os
import signal
from contextlib import suppress

import psutil

from tests.chaos.target import Target

MIN_STOP_S, MAX_STOP_S = 2.0, 12.0
"""Durations around the bus's timeouts: 5 s for an answer of NATS, and as long for redelivery to another replica."""
MAX_WAY_TO_A_POINT_S = 40.0
JUMP_S = 3600
MIN_JUMP_S, MAX_JUMP_S = 2.0, 6.0


async def kill(target: Target, name: str) -> None:
    for process in target.tree(name)[:1]:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


async def stop_for_a_while(target: Target, name: str) -> None:
    """SIGSTOP: its connections stay open without an answer."""
    tree = target.tree(name)
    try:
        for process in tree:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        await target.pass_time(MIN_STOP_S, MAX_STOP_S)
    finally:
        for process in tree:
            with suppress(psutil.NoSuchProcess):
                process.resume()


async def crash(target: Target, service: str, point: str) -> None:
    """End the service's next run at `point`; returns then, or when it was not reached in time."""
    armed = target.armed(service)
    before = target.restarts(service)
    armed.parent.mkdir(exist_ok=True)
    armed.write_text(f"{point}:{target.random.randint(1, 3)}")
    await kill(target, service)
    with suppress(TimeoutError):
        async with asyncio.timeout(MAX_WAY_TO_A_POINT_S):
            while target.restarts(service) < before + 2:
                await asyncio.sleep(0.1)
            target.points_reached.append(f"{service} {point}")


async def jump(target: Target, name: str, ahead_s: int) -> None:
    """Set a process's wall clock an hour wrong for some seconds, then right: two jumps."""
    assert target.clocks is not None
    try:
        target.clocks.jump(name, ahead_s)
        await target.pass_time(MIN_JUMP_S, MAX_JUMP_S)
    finally:
        target.clocks.jump(name, 0)
