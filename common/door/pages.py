"""Questions whose answers come a page at a time, by whatever carries them."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import TypeVar

from common.door.protocol import EVERY_TASK
from common.messages import AskEvents, AskTasks, Event, EventsAnswer, Message, TasksAnswer, TaskStatus
from common.messages.asks import MAX_NUMBER

M = TypeVar("M", bound=Message)


class Asking(ABC):
    """What a door can ask with `ask` alone."""

    @abstractmethod
    async def ask(self, verb: str, request: Message, answer: type[M], *, tenant: str | None = None) -> M: ...

    async def tasks(self, wanted: AskTasks = EVERY_TASK) -> list[TaskStatus]:
        """Every task that is wanted, in its order. Raises: as `ask`."""
        found, cursor = list[TaskStatus](), wanted.cursor
        while True:
            page = await self.ask("tasks", wanted.model_copy(update={"cursor": cursor}), TasksAnswer)
            found, cursor = [*found, *page.tasks], page.cursor
            if cursor is None:
                return found

    async def events_after(self, task: str, number: int, *, tenant: str | None = None) -> AsyncIterator[Event]:
        """Stored events of the task above `number`, by number. Raises: as `ask`."""
        while True:
            page = await self.ask("events", AskEvents(task=task, after=number), EventsAnswer, tenant=tenant)
            for event in page.events:
                number = max(number, event.number or 0)
                yield event
            if not page.events or number >= page.last:
                return

    async def last_event(self, task: str, *, tenant: str | None = None) -> int:
        """Number of the task's latest event; 0 before the first. Raises: as `ask`."""
        return (await self.ask("events", AskEvents(task=task, after=MAX_NUMBER), EventsAnswer, tenant=tenant)).last
