"""Faults of an executor's process: killed or hung at a point, or stopped for a while."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psutil

from bench.harness.services import BenchError
from bench.plex.real.faults.scene import Scene, until
from common.leases.history import MIN_LIMIT_S
from common.leases.watchdog import BACKSTOP_S, CHECK_S
from common.resilience.crashpoints import HANG

TO_POINT_S = 240.0
"""Maximum time until an armed process reaches the point: only slices of 3 s and more are renewed, and few are as long."""
ENDS_HUNG_S = MIN_LIMIT_S + BACKSTOP_S + CHECK_S
"""Time in which a hung process must have been ended by its own watchdog, where its moves take less than a tenth of that."""
HUNG_PATIENCE_S = 4 * MIN_LIMIT_S
LOOKED_S = 1.0
"""The recorder has looked by then, however busy the machine is."""
STOPPED_S = 20.0
"""Longer than a lease, shorter than the watchdog's patience."""


async def kill(scene: Scene, executor: str, point: str) -> dict[str, Any]:
    """It dies at the point."""
    process, began_s = scene.process(executor), time.time()
    await _reach(scene, executor, point)
    died_s = await scene.death(process)
    return await _recovered(scene, died_s) | {"to_point_s": round(died_s - began_s, 2)}


async def hang(scene: Scene, executor: str, point: str) -> dict[str, Any]:
    """It stands still at the point, with all its locks, until its watchdog ends it."""
    process, began_s = scene.process(executor), time.time()
    reached_s = await _reach(scene, executor, f"{point}:1{HANG}")
    died_s = await scene.death(process, HUNG_PATIENCE_S)
    found = await _recovered(scene, died_s)
    return found | {"to_point_s": round(reached_s - began_s, 2), "hung_s": round(died_s - reached_s, 2), "hung_allowed_s": ENDS_HUNG_S}


async def stop(scene: Scene, executor: str) -> dict[str, Any]:
    """SIGSTOP while it holds the accelerator. No other may compute until it runs again, and has parked itself or died."""
    family = await _stopped(scene, executor)
    try:
        await asyncio.sleep(STOPPED_S)
        holder = scene.holder
    finally:
        _resume(family)
    went_on_s = time.time()
    if holder != executor:
        raise BenchError(f"{executor} was stopped with the lock, and then the holder is {holder}")
    found = (await scene.in_use(went_on_s)).described()
    await scene.ready()
    return found | {"stopped_s": STOPPED_S}


async def _stopped(scene: Scene, executor: str) -> list[psutil.Process]:
    """Its processes, stopped while it holds the accelerator: it may have parked between the recorder's look and the signals."""
    while True:
        await scene.holds(executor)
        family = scene.family(executor)
        for one in family:
            one.suspend()
        await asyncio.sleep(LOOKED_S)
        if scene.holder == executor:
            return family
        _resume(family)


def _resume(family: Sequence[psutil.Process]) -> None:
    for one in family:
        with suppress(psutil.NoSuchProcess):
            one.resume()


async def _reach(scene: Scene, executor: str, setting: str) -> float:
    """Arm the point; returns when it was reached."""
    before, point = len(scene.reached(executor)), setting.partition(":")[0]
    scene.arm(executor, setting if ":" in setting else f"{setting}:1")

    async def look() -> bool:
        return len(scene.reached(executor)) > before

    await until(look, f"{executor} reaches {point}", TO_POINT_S, every_s=0.01)
    return scene.reached(executor)[-1][1]


async def _recovered(scene: Scene, died_s: float) -> dict[str, Any]:
    in_use = await scene.in_use(died_s)
    await scene.ready()
    ready_s = time.time() - died_s
    return in_use.described() | {"ready_after_s": round(ready_s, 2)}
