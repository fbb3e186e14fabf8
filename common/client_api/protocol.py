"""What a client needs of its way in, whatever carries it: NATS (`asking.py`) or HTTP (`marlaas/over_http`)."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol, TypeVar

from common.access.credentials import Credentials
from common.bus import Outgoing
from common.messages import AskTasks, Event, Message, TaskStatus

M = TypeVar("M", bound=Message)
Verb = Literal["cancel", "pause", "resume"]
EVERY_TASK = AskTasks()


class AnyDoor(Protocol):
    """Questions, jobs and events. `asking.Door` says what each method does and raises."""

    @property
    def tenant(self) -> str | None:
        """Whose data it asks for; None: everybody's."""
        ...

    @property
    def key(self) -> Credentials | None: ...

    async def ask(self, verb: str, request: Message, answer: type[M], *, tenant: str | None = None) -> M: ...

    async def tasks(self, wanted: AskTasks = EVERY_TASK) -> list[TaskStatus]: ...

    def events_after(self, task: str, number: int, *, tenant: str | None = None) -> AsyncIterator[Event]: ...

    async def last_event(self, task: str, *, tenant: str | None = None) -> int: ...

    async def publish(self, out: Outgoing) -> None: ...

    def listening(self, tenant: str | None, task: str | None) -> AbstractAsyncContextManager[Any]:
        """What it gives is for `next_event` alone."""
        ...

    async def next_event(self, live: Any, timeout_s: float) -> Event | None: ...
