"""A store that is restored to an older copy, as operators do it (docs/operations.md, "A store that is older than the other").

The copy is of a store in use. Later everything is stopped, the copy takes the store's place, both stores are reconciled, and everything
starts again. What is promised then is less than after a kill: tasks that PostgreSQL does not know any more are lost, and one whose
checkpoint NATS has no more is paused. Their owners submit others in their place, and delete what has no blobs; the operator deletes blobs
of tasks that are unknown. After that the doctor must find nothing.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from bench.harness.keys import measuring_key
from bench.harness.services import BenchError
from bench.plex.real.faults.scene import Scene, until
from bench.plex.real.faults.servers import suspended
from common.blobs import BLOB_NAME, Blobs
from common.bus import Bus
from common.task_states import ENDED
from marlaas.client import ClientError
from marlaas.stack import control, servers
from marlaas.stack.state_files import StackError, StackPlan, read_plan

OLDER = {"postgres": "PostgreSQL is older than NATS", "nats": "NATS is older than PostgreSQL"}
"""How the reconciliation must begin what it found."""
STEPS_LATER = 4
"""Steps that are trained after the copy was made, and lost with the store or with their blobs."""
MIN_LATER_S = 10.0
ANSWER_S = 30.0
TRAINED = "SELECT count(*)::int FROM steps WHERE trained_at > to_timestamp(%s)"
WITHOUT_BLOBS = """
SELECT id FROM tasks t WHERE state = ANY(%s) AND EXISTS (
    SELECT FROM steps s WHERE s.task = t.id AND s.trained_at BETWEEN to_timestamp(%s) AND to_timestamp(%s)) ORDER BY id
"""
"""Ended tasks with steps of between two times."""
NUMBERS = "UPDATE event_numbers SET last = last + 1000000"
"""As deploy/restore.sh: events that come now must not have numbers of events that were seen."""
VOIDED = re.compile(r"^task \S+: (\d+) groups in flight are void and refilled$", re.MULTILINE)
PAUSED = re.compile(r"^task (\S+): paused: ", re.MULTILINE)
UNKNOWN = re.compile(r"^task (\S+): not in PostgreSQL; ", re.MULTILINE)


@dataclass(frozen=True)
class Told:
    """What the reconciliation printed."""

    reason: str
    voided: int
    """Groups in flight."""
    paused: tuple[str, ...]
    """Tasks whose checkpoint is gone."""
    unknown: tuple[str, ...]
    """Tasks that PostgreSQL does not know any more."""

    @classmethod
    def of(cls, text: str) -> "Told":
        """Raises: BenchError where the stores had one history."""
        first, _, _ = text.partition("\n")
        if not first.startswith("found: "):
            raise BenchError(f"nothing was to be reconciled: {text.strip()}")
        voided = sum(map(int, VOIDED.findall(text)))
        return cls(first.removeprefix("found: "), voided, tuple(PAUSED.findall(text)), tuple(UNKNOWN.findall(text)))


async def restored(scene: Scene, server: str) -> dict[str, Any]:
    """The store loses what came after its copy. Ends once the accelerator is in use and every process is ready."""
    copy, plan = scene.data / f"{server}.copy", read_plan(scene.data)
    async with suspended(scene, server, 0.0):  # files of one moment, as after a power failure
        copied_s = time.time()
        await asyncio.to_thread(copied, scene.data / server, copy)
    lost = await _trained_since(scene, copied_s)
    stopped_s = time.time()
    await asyncio.to_thread(control.stop, scene.data)
    ended_s = time.time()
    await asyncio.to_thread(put_back, scene.data / server, copy)
    told = await _reconciled(plan, server)
    started_s = time.time()
    await _up(plan)
    deleted = await _delete_lost(scene, told.paused, (copied_s, ended_s) if server == "nats" else None)  # all may wait for blobs
    in_use = await scene.in_use(started_s)
    await scene.ready()
    about = {"lost_steps": lost, "voided_groups": told.voided, "cancelled": len(told.paused), "unknown": len(told.unknown)}
    times = {"ready_after_s": round(time.time() - started_s, 2), "away_s": round(started_s - stopped_s, 2)}
    found = {name: value for name, value in in_use.described().items() if name not in ("allowed_s", "within")}  # processes start meanwhile
    return found | times | about | {"deleted": deleted, "reason": told.reason}


def copied(folder: Path, copy: Path) -> None:
    """Copy a store's folder, owners included: PostgreSQL runs as another user than root. Nothing may write to it meanwhile."""
    shutil.rmtree(copy, ignore_errors=True)
    subprocess.run(["cp", "--archive", str(folder), str(copy)], check=True)
    (copy / "postmaster.pid").unlink(missing_ok=True)  # PostgreSQL would refuse to start where that process's number is another's now


def put_back(folder: Path, copy: Path) -> None:
    """The copy takes the folder's place, which is deleted."""
    gone = folder.with_suffix(".gone")
    folder.rename(gone)
    copy.rename(folder)
    shutil.rmtree(gone)


async def _trained_since(scene: Scene, copied_s: float) -> int:
    """Wait until enough is there that the copy lacks; steps that were trained."""
    found = 0

    async def look() -> bool:
        nonlocal found
        found = int((await scene.rows(TRAINED, copied_s))[0][0])
        return found >= STEPS_LATER and time.time() > copied_s + MIN_LATER_S

    await until(look, f"{STEPS_LATER} steps were trained after the copy")
    return found


async def _reconciled(plan: StackPlan, server: str) -> Told:
    """Make one history of both stores, with all services stopped. Raises: BenchError where it does not find that `server` is older."""
    await _up(plan.model_copy(update={"services": []}))
    if server == "postgres":
        await asyncio.to_thread(_raise_numbers, plan.prepare_env["MARLAAS_SCHEDULER_DATABASE_OWNER_URL"])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "scheduler_svc.reconcile", env={**os.environ, **plan.prepare_env},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, failed = (text.decode() for text in await process.communicate())
    if process.returncode:
        raise BenchError(f"the stores were not reconciled: {failed}")
    told = Told.of(said)
    if not told.reason.startswith(OLDER[server]):
        raise BenchError(f"{server} was restored, and the reconciliation says: {told.reason}")
    await _erase_blobs(plan, told.unknown)
    await asyncio.to_thread(control.stop, plan.data)
    return told


def _raise_numbers(url: str) -> None:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(NUMBERS)


async def _up(plan: StackPlan) -> None:
    """Raises: BenchError."""
    try:
        starting = control.start(plan, end_with_parent=True)  # with the thread that calls, which must live on
        await asyncio.to_thread(control.wait_until_ready, starting, lambda _: None)
    except StackError as error:
        raise BenchError(str(error)) from None


async def _delete_lost(scene: Scene, paused: Sequence[str], between_s: tuple[float, float] | None) -> int:
    """Cancel and delete what is paused, and delete what ended with steps of a time whose blobs are gone; returns how many were deleted."""
    ended = await scene.rows(WITHOUT_BLOBS, list(ENDED), *between_s) if between_s is not None else []
    lost = sorted({*paused, *(str(row[0]) for row in ended)})
    for task in lost:
        await until(partial(_is_deleted, scene, task), f"{task} is deleted", every_s=0.5)
    return len(lost)


async def _is_deleted(scene: Scene, task: str) -> bool:
    """Whether the task is gone; else do the next that is to be done to it. What the client says does not count: its status may be late."""
    row = await scene.rows("SELECT state FROM tasks WHERE id = %s", task)
    if not row:
        return True
    with suppress(ClientError, TimeoutError):
        if row[0][0] in ENDED:
            await scene.client.delete(task, timeout_s=ANSWER_S)
        else:
            await scene.client.cancel(task, "its checkpoint is gone")
    return False


async def _erase_blobs(plan: StackPlan, unknown: Sequence[str]) -> None:
    """The scheduler leaves blobs of tasks that it does not know: they may be another database's."""
    assert plan.keys is not None
    async with await Bus.connect(servers.nats_url(plan.nats_port), "bench", creds=measuring_key(plan.keys)) as bus:
        blobs = Blobs(bus)
        for name in [one.name for one in await blobs.listed()]:
            if (known := BLOB_NAME.fullmatch(name)) and known["task"] in unknown:
                await blobs.delete(name)
