"""NatsJobs: jobs about tasks, as a client of NATS sends them."""

from pydantic import JsonValue

from common.door.asking import Door
from common.door.protocol import Verb
from common.door.training.control import control, delete_task, resend
from common.door.training.download import fetch_blob
from common.door.training.failures import read_failure
from common.door.training.submission import preview, submit
from common.messages import AdapterRef, Event, TaskStatus
from common.spec import TaskSpec


class NatsJobs:
    """`Jobs` by NATS."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def submit(self, spec: TaskSpec | dict[str, JsonValue], task: str | None, *, timeout_s: float) -> Event:
        return await submit(self._door, spec, task, timeout_s=timeout_s)

    async def preview(self, spec: TaskSpec | dict[str, JsonValue], *, timeout_s: float) -> Event:
        return await preview(self._door, spec, timeout_s=timeout_s)

    async def control(self, verb: Verb, status: TaskStatus, reason: str) -> None:
        await control(self._door, verb, status, reason)

    async def delete(self, status: TaskStatus, *, timeout_s: float) -> int:
        return await delete_task(self._door, status, timeout_s=timeout_s)

    async def resend(self, letter: int, *, timeout_s: float) -> None:
        await resend(self._door, await read_failure(self._door, letter), timeout_s=timeout_s)

    async def blob(self, task: str, adapter: AdapterRef) -> bytes:
        return await fetch_blob(self._door, task, adapter)
