"""A client's access, as an interface with implementations over NATS (`asking.py`) and HTTP (`marlaas/over_http`). Paginated questions."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol, TypeVar

from common.access.credentials import Credentials
from common.bus import Outgoing
from common.messages import AskEvents, AskTasks, Event, EventsAnswer, Message, TasksAnswer, TaskStatus
from common.messages.asks import MAX_NUMBER

M = TypeVar("M", bound=Message)
Verb = Literal["cancel", "pause", "resume"]
EVERY_TASK = AskTasks()


class AnyDoor(Protocol):
    """Questions, jobs and events. `asking.Door` documents each method."""

    @property
    def tenant(self) -> str | None:
        """Tenant whose data it reads; None: all tenants."""
        ...

    @property
    def key(self) -> Credentials | None: ...

    async def ask(self, verb: str, request: Message, answer: type[M], *, tenant: str | None = None) -> M: ...

    async def tasks(self, wanted: AskTasks = EVERY_TASK) -> list[TaskStatus]: ...

    def events_after(self, task: str, number: int, *, tenant: str | None = None) -> AsyncIterator[Event]: ...

    async def last_event(self, task: str, *, tenant: str | None = None) -> int: ...

    async def publish(self, out: Outgoing) -> None: ...

    def listening(self, tenant: str | None, task: str | None) -> AbstractAsyncContextManager[Any]:
        """Context whose value is only for `next_event`."""
        ...

    async def next_event(self, live: Any, timeout_s: float) -> Event | None: ...


class Asks(Protocol):
    """The part of `AnyDoor` that reading needs."""

    async def ask(self, verb: str, request: Message, answer: type[M], *, tenant: str | None = None) -> M: ...


class Page(Protocol):
    """An answer with the cursor of the next page."""

    @property
    def cursor(self) -> str | int | None: ...


class Part(Protocol):
    """An answer that says whether there are more entries."""

    @property
    def has_more(self) -> bool: ...


async def pages(
    door: Asks,
    verb: str,
    request: Message,
    answer: type[M],
    behind: Callable[[M], Mapping[str, object] | None],
    *,
    tenant: str | None = None,
) -> AsyncGenerator[M]:
    """Every page of an answer. `behind`: given a page, returns the fields that make the request ask for the next page; None after the last
    page.

    Raises: as `Door.ask`.
    """
    while True:
        page = await door.ask(verb, request, answer, tenant=tenant)
        yield page
        fields = behind(page)
        if fields is None:
            return
        request = request.model_copy(update=fields)


def at_cursor(page: Page, field: str = "cursor") -> dict[str, object] | None:
    """Argument `behind` of `pages` for an answer with a cursor."""
    return None if page.cursor is None else {field: page.cursor}


def after_last(page: Part, numbers: Sequence[int]) -> dict[str, object] | None:
    """Argument `behind` of `pages` for an answer that says whether there are more entries. `numbers`: numbers of the page's entries; the
    next page starts after the last."""
    return {"after": numbers[-1]} if page.has_more and numbers else None


class Asking(ABC):
    """Questions that need only `ask`."""

    @abstractmethod
    async def ask(self, verb: str, request: Message, answer: type[M], *, tenant: str | None = None) -> M: ...

    async def tasks(self, wanted: AskTasks = EVERY_TASK) -> list[TaskStatus]:
        """Every task that matches `wanted`, in its order. Raises: as `ask`."""
        return [one async for page in pages(self, "tasks", wanted, TasksAnswer, at_cursor) for one in page.tasks]

    async def events_after(self, task: str, number: int, *, tenant: str | None = None) -> AsyncIterator[Event]:
        """Stored events of the task above `number`, in ascending order. Raises: as `ask`."""
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
