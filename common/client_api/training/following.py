"""Follows the events of tasks without loss or repetition: listens first, then reads past events, and compares the events' numbers."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from common.client_api.asking import UnknownHere
from common.client_api.errors import NoAnswer
from common.client_api.protocol import AnyDoor
from common.messages import AskDeployment, AskTask, Event, PoolsAnswer, StatusAnswer
from common.task_states import ENDED

RECHECK_S = 15.0
"""Seconds between checks for lost events; a gap in the numbers is noticed immediately."""


async def follow(
    door: AnyDoor, tasks: Sequence[str], *, from_now: bool, after: int | None = None, recheck_s: float = RECHECK_S
) -> AsyncIterator[Event]:
    """Past and future events of these tasks, in order; ends when all of them have ended. Without tasks: future events of every task.
    `after`: number of the last event to skip, for a single task.

    Raises: ClientError; NoAnswer if no scheduler answers at the start. Later, it waits until a scheduler answers.
    """
    followed = _Followed(door, tasks)
    async with door.listening(door.tenant, tasks[0] if len(tasks) == 1 else None) as live:
        if not tasks:
            await door.ask("pools", AskDeployment(), PoolsAnswer)  # checks that a scheduler answers
        for task in tasks:
            if from_now or after is not None:
                await followed.skip_past(task, after)
            async for event in followed.missed(task):
                yield event
        checked = time.monotonic()
        while followed.is_unended:
            event = await door.next_event(live, recheck_s)
            if event is not None and followed.wants(event):
                async for missed in followed.missed_by([event.task] if followed.has_gap(event) else []):
                    yield missed
                if followed.take(event):
                    yield event
            if event is None or time.monotonic() - checked > recheck_s:
                checked = time.monotonic()
                async for missed in followed.missed_by(followed.unended):
                    yield missed


class _Followed:
    """The tasks being followed, with the number of the last event of each."""

    def __init__(self, door: AnyDoor, tasks: Sequence[str]) -> None:
        self._door = door
        self._awaited = set(tasks)
        self._is_everything = not tasks
        self._seen: dict[str, int] = {}
        self._owner: dict[str, str] = {}
        """Tenant of each task. Events of other tenants about the task, such as their refused attempts to control it, are ignored."""
        self._accepted: set[str] = set()

    @property
    def is_unended(self) -> bool:
        return self._is_everything or bool(self._awaited)

    @property
    def unended(self) -> list[str]:
        return sorted(self._seen if self._is_everything else self._awaited)

    async def skip_past(self, task: str, number: int | None = None) -> None:
        """Skip the task's events up to `number` (None: all past ones). If the task has ended, its end is not awaited."""
        self._seen[task] = await self._door.last_event(task) if number is None else number
        with suppress(UnknownHere):
            status = (await self._door.ask("status", AskTask(task=task), StatusAnswer)).status
            self._owner[task] = status.tenant
            if status.state in ENDED:
                self._awaited.discard(task)
            elif status.state != "submitted":
                self._accepted.add(task)

    async def missed(self, task: str) -> AsyncIterator[Event]:
        """Stored events of the task that were not seen yet. Raises: as `Door.ask`."""
        async for event in self._door.events_after(task, self._seen.get(task, 0), tenant=self._owner.get(task)):
            if self.take(event):
                yield event

    async def missed_by(self, tasks: Sequence[str]) -> AsyncIterator[Event]:
        """Events of `missed` for each of these tasks; none while no scheduler answers."""
        with suppress(NoAnswer):
            for task in tasks:
                async for event in self.missed(task):
                    yield event

    def wants(self, event: Event) -> bool:
        is_ours = self._owner.get(event.task, event.tenant) == event.tenant
        return is_ours and (self._is_everything or event.task in self._awaited)

    def has_gap(self, event: Event) -> bool:
        """Whether an earlier event of the task was not seen. If all tasks are followed, events before the first one seen do not count."""
        if event.number is None or (self._is_everything and event.task not in self._seen):
            return False
        return event.number > self._seen.get(event.task, 0) + 1

    def take(self, event: Event) -> bool:
        """Record the event; False if it was seen before."""
        if event.number is not None and event.number <= self._seen.get(event.task, 0):
            return False
        self._seen[event.task] = event.number or self._seen.get(event.task, 0)
        self._owner.setdefault(event.task, event.tenant)
        if event.event == "accepted":
            self._accepted.add(event.task)
        is_another_submission = event.event == "rejected" and event.task in self._accepted  # under the same id
        if event.event in ENDED and not is_another_submission:
            self._awaited.discard(event.task)
            if self._is_everything:
                self._seen.pop(event.task, None)
        return True
