"""Tasks that are submitted again when they have finished, so that there is work for as long as faults come."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    _stopping: bool = False

    def first_digests(self) -> dict[str, list[str]]:
        """Of the first task of each name that has finished."""
        return {one.name: list(one.digests) for one in reversed(self.finished)}

    def stop(self) -> None:
        """Submit nothing any more; `run` returns when all have finished."""
        self._stopping = True

    async def run(self) -> None:
        """Raises: BenchError when a task ends otherwise than finished."""
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
        task, began_s = new_task_id(spec.name), time.monotonic()
        await self._submit(spec, task)

        async def has_ended() -> bool:
            found = await self.scene.rows("SELECT state, reason FROM tasks WHERE id = %s", task)
            if found and found[0][0] in ENDED and found[0][0] != "finished":
                raise BenchError(f"task {task} {found[0][0]}: {found[0][1]}")
            return bool(found) and found[0][0] == "finished"

        await until(has_ended, f"{task} has finished", FINISH_S, every_s=0.2)
        digests = tuple(str(row[0]) for row in await self.scene.rows(DIGESTS, task))
        self.finished.append(Finished(task, spec.name, time.monotonic() - began_s, digests))

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


def differing(finished: Sequence[Finished], reference: Mapping[str, Sequence[str]]) -> list[str]:
    """Tasks whose adapters are not those of the undisturbed run."""
    return [one.task for one in finished if list(one.digests) != list(reference[one.name])]
