"""Tasks that are submitted again when they have finished, so that there is work for as long as faults come."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.harness.services import BenchError
from bench.plex.real.faults.scene import Scene, until
from common.spec import TaskSpec
from common.task_states import ENDED
from marlaas.client import ClientError, NoAnswer, new_task_id

SUBMIT_S = 5.0
FINISH_S = 600.0
"""Maximum time of a task with faults meanwhile."""
DIGESTS = """
SELECT data->'stored'->'adapter'->'blob'->>'sha256' FROM events WHERE task = %s AND event = 'step' ORDER BY number
"""


@dataclass(frozen=True)
class Finished:
    task: str
    name: str
    took_s: float
    digests: tuple[str, ...]
    """Of its adapters, version by version."""


@dataclass
class Endless:
    """Each spec has one live task until `stop`."""

    scene: Scene
    specs: Sequence[TaskSpec]
    finished: list[Finished] = field(default_factory=list[Finished])
    lost: list[str] = field(default_factory=list[str])
    """Tasks that a restored store does not know any more, or that were cancelled as it has no checkpoint of theirs."""
    _stopping: bool = False

    def first_digests(self) -> dict[str, list[str]]:
        """Of the first task of each name that has finished."""
        return {one.name: list(one.digests) for one in reversed(self.finished)}

    def stop(self) -> None:
        """Submit nothing any more; `run` returns when all have finished."""
        self._stopping = True

    async def run(self) -> None:
        """Raises: BenchError when a task fails or is rejected."""
        async with asyncio.TaskGroup() as runners:
            for spec in self.specs:
                runners.create_task(self._repeat(spec))

    async def once(self, pool: str) -> float:
        """Seconds until the pool's tasks, submitted together while no other of it is alive, have finished."""
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as runners:
            for spec in self.specs:
                if spec.pool == pool:
                    runners.create_task(self._train(spec))
        return time.monotonic() - began_s

    async def _repeat(self, spec: TaskSpec) -> None:
        while not self._stopping:
            await self._train(spec)

    async def _train(self, spec: TaskSpec) -> None:
        task, began_s = new_task_id(spec.name, spec.tenant), time.monotonic()
        await self._submit(spec, task)
        ended = [""]

        async def has_ended() -> bool:
            rows = await self.scene.rows("SELECT state, reason FROM tasks WHERE id = %s", task)
            ended[0] = ended_as(task, rows[0] if rows else None)
            return bool(ended[0])

        await until(has_ended, f"{task} has finished", FINISH_S, every_s=0.2)
        if ended[0] != "finished":
            self.lost.append(task)
            return
        self.finished.append(Finished(task, spec.name, time.monotonic() - began_s, await self._digests(task)))

    async def _digests(self, task: str) -> tuple[str, ...]:
        return tuple(str(row[0]) for row in await self.scene.rows(DIGESTS, task))

    async def present(self) -> list[Finished]:
        """All that have finished as PostgreSQL has them now: one that was restored may have taken up again what had finished before.

        Waits until no task is live.
        """

        async def look() -> bool:
            return not await self.scene.rows("SELECT id FROM tasks WHERE state <> ALL(%s)", list(ENDED))

        await until(look, "every task has ended", FINISH_S, every_s=0.2)
        rows = await self.scene.rows("SELECT id, name FROM tasks WHERE state = 'finished' ORDER BY id")
        return [Finished(str(task), str(name), 0.0, await self._digests(str(task))) for task, name in rows]

    async def _submit(self, spec: TaskSpec, task: str) -> None:
        """Repeated until it is accepted: NATS or the scheduler may be unavailable."""
        while True:
            try:
                await self.scene.client.submit(spec, task, timeout_s=SUBMIT_S)
                return
            except NoAnswer:
                continue
            except ClientError as error:
                raise BenchError(f"{task} was not accepted: {error}") from None


def ended_as(task: str, row: tuple[Any, ...] | None) -> str:
    """How a task that was accepted has ended: `finished`, `cancelled`, or `unknown` without a row; empty while it is live.

    Raises: BenchError for one that failed or was rejected.
    """
    if row is None:
        return "unknown"
    state, reason = row
    if state in ENDED and state not in ("finished", "cancelled"):
        raise BenchError(f"task {task} {state}: {reason}")
    return state if state in ENDED else ""


def differing(finished: Sequence[Finished], reference: Mapping[str, Sequence[str]]) -> list[str]:
    """Tasks whose adapters are not those of the undisturbed run."""
    return sorted({one.task for one in finished if list(one.digests) != list(reference[one.name])})
