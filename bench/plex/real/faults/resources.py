"""Faults of what an executor needs: memory, its model's folder, its locks. The other pool computes meanwhile."""

import asyncio
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from bench.harness.services import BenchError
from bench.plex.real.arms import ACCELERATOR
from bench.plex.real.faults.scene import PATIENCE_S, Scene, until
from bench.plex.real.faults.tasks import Endless

MARGIN_BYTES = {"rollout": 16 * 2**20, "trainer": 4 * 2**20}
"""Room that a process without memory still has: for threads and messages, not for weights or a KV cache."""
LOCKED_OUT_S = 12.0
REFUSED = "cannot be used for locks"


async def no_memory(scene: Scene, executors: Sequence[str], attempts: int) -> dict[str, Any]:
    """RLIMIT_DATA leaves the first of these that is parked no room for what it needs awake, until so many wakes have failed."""
    limited = list[psutil.Process]()
    try:
        executor = await _limited(scene, executors, limited)
        faults = await _failed(scene, executor, attempts)
        other = await scene.in_use(time.time())
    finally:
        for one in limited:
            _limit(one, -1)
    mended_s = time.time()
    await _woke(scene, [executor])
    found = other.described() | {"executor": executor, "failed_wakes": faults, "awake_again_after_s": round(time.time() - mended_s, 2)}
    await scene.ready()
    return found


async def no_model(scene: Scene, pool: str) -> dict[str, Any]:
    """The model's folder is gone while its executors are parked on disk, until one could not wake; then it is back."""
    executors = [f"rollout-{pool}", f"trainer-{pool}"]
    began_s = time.time()
    with _gone(scene.models / pool):
        faulty, reason = await _any_failed(scene, executors)
        other = await scene.in_use(time.time())
    mended_s = time.time()
    await _woke(scene, [faulty])
    found = other.described() | {"executor": faulty, "reason": reason, "to_point_s": round(mended_s - began_s, 2)}
    await scene.ready()
    return found | {"awake_again_after_s": round(time.time() - mended_s, 2)}


async def poison(scene: Scene, pool: str, other: str, tasks: Endless) -> dict[str, Any]:
    """The model's folder stays away while the other pool's tasks train from begin to end, first alone, then beside the poisoned pool's.

    In the end it is put back, so that the pool's tasks finish, too.
    """
    executors = [f"rollout-{pool}", f"trainer-{pool}"]
    alone_s = await tasks.once(other)
    async with asyncio.TaskGroup() as runners:
        with _gone(scene.models / pool):
            began_s = time.time()
            poisoned = runners.create_task(tasks.once(pool))
            beside_s = await tasks.once(other)
            ended_s = time.time()
            faulty, reason = await _any_failed(scene, executors)
            query = "SELECT id FROM tasks WHERE state IN ('submitted', 'running') AND pool = %s LIMIT 1"
            why = await scene.client.why(str((await scene.rows(query, pool))[0][0]))
            told = [one.fault for one in await scene.client.accelerators.executors(pool) if one.executor == faulty]
            attempts = await _attempts(scene, executors, began_s, ended_s)
        await poisoned
    return {
        "executor": faulty,
        "reason": reason,
        "why": {"cause": why.cause, "sentence": why.sentence},
        "pools": told[0] if told else None,
        "attempts": len(attempts),
        "attempts_s": round(sum(attempts), 2),
        "others_alone_s": round(alone_s, 2),
        "others_beside_s": round(beside_s, 2),
        "later_s": round(beside_s - alone_s, 2),
    }


async def read_only_locks(scene: Scene, executor: str) -> dict[str, Any]:
    """The locks' folder is mounted read-only, and the executor is killed: its next process cannot open them, until the mount is gone.

    Those that run have them open already, and a mount refuses only new openings.
    """
    process, folder = scene.process(executor), scene.data / "accelerators" / ACCELERATOR
    refused = False
    with _read_only(folder):
        process.kill()
        died_s = await scene.death(process)
        ends_s = time.monotonic() + LOCKED_OUT_S
        while time.monotonic() < ends_s or not refused:
            refused = refused or REFUSED in scene.component(executor).detail
            if time.monotonic() > ends_s + PATIENCE_S:
                raise BenchError(f"{executor} opened its locks in a folder that is read-only")
            await asyncio.sleep(0.1)
        other = await scene.in_use(died_s)
        away = scene.component(executor).condition != "ready"
    mended_s = time.time()
    await scene.ready()
    found = other.described() | {"ready_after_s": round(time.time() - mended_s, 2)}
    return found | {"reason": REFUSED, "within": other.described()["within"] and away}


def _limit(process: psutil.Process, size: int) -> None:
    with suppress(psutil.NoSuchProcess):
        process.rlimit(psutil.RLIMIT_DATA, (size, -1))


@contextmanager
def _gone(folder: Path) -> Generator[None]:
    elsewhere = folder.with_suffix(".gone")
    folder.rename(elsewhere)
    try:
        yield
    finally:
        elsewhere.rename(folder)


@contextmanager
def _read_only(folder: Path) -> Generator[None]:
    """Raises: BenchError where this user may not mount."""
    if subprocess.run(["mount", "--bind", str(folder), str(folder)], check=False).returncode:
        raise BenchError("a folder can be made read-only for root by a mount alone, which this user may not make")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


async def _limited(scene: Scene, executors: Sequence[str], limited: list[psutil.Process]) -> str:
    """Limit the first that is parked: what an executor has while it is awake would be enough. `limited` receives its processes."""
    found = ""

    async def look() -> bool:
        nonlocal found
        for found in executors:
            if await _is_off(scene, found):
                (process, *others), service = scene.family(found), found.partition("-")[0]
                limited[:] = others if service == "rollout" else [process]  # a sampler's memory is its engine's
                for one in limited:
                    _limit(one, one.memory_info().data + MARGIN_BYTES[service])
                if await _is_off(scene, found):
                    return True
                for one in limited:
                    _limit(one, -1)
        return False

    await until(look, f"{' or '.join(executors)} is parked off the device")
    return found


async def _is_off(scene: Scene, executor: str) -> bool:
    state, tier, _ = await scene.tier(executor)
    return state == "parked" and tier in ("host", "disk") and scene.holder != executor


async def _failed(scene: Scene, executor: str, attempts: int) -> int:
    """Wait until so many wakes in a row have failed."""
    found = [0]

    async def look() -> bool:
        found[0] = max(found[0], (await scene.tier(executor))[2])
        return found[0] >= attempts

    await until(look, f"{executor} has failed to wake {attempts} times")
    return found[0]


async def _any_failed(scene: Scene, executors: Sequence[str]) -> tuple[str, str]:
    """Which of them could not wake, and why."""
    found = list[tuple[Any, ...]]()

    async def look() -> bool:
        found[:] = await scene.rows("SELECT id, fault FROM executors WHERE faults > 0 AND id = ANY(%s) ORDER BY id", list(executors))
        return bool(found)

    await until(look, f"{' or '.join(executors)} has failed to wake")
    return str(found[0][0]), str(found[0][1])


async def _woke(scene: Scene, executors: Sequence[str]) -> None:
    async def look() -> bool:
        return not await scene.rows("SELECT id FROM executors WHERE faults > 0 AND id = ANY(%s)", list(executors))

    await until(look, f"{' and '.join(executors)} woke again")


async def _attempts(scene: Scene, executors: Sequence[str], began_s: float, ended_s: float) -> list[float]:
    """Seconds of each slice between two times in which an executor of these did not wake."""
    query = """SELECT extract(epoch FROM ended_at - ordered_at)::float FROM slices WHERE executor = ANY(%s) AND ended = 'faulty'
               AND ordered_at BETWEEN to_timestamp(%s) AND to_timestamp(%s)"""
    return [float(row[0]) for row in await scene.rows(query, list(executors), began_s, ended_s)]
