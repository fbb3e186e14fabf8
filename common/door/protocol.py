"""What a client needs of its way in, whatever carries it: NATS (`asking.py`, `training/jobs.py`) or HTTP (`marlaas/over_http`)."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol, TypeVar

from pydantic import JsonValue

from common.access.credentials import Credentials
from common.bus import Outgoing
from common.messages import AdapterRef, AskTasks, Event, Message, TaskStatus
from common.spec import TaskSpec

M = TypeVar("M", bound=Message)
Verb = Literal["cancel", "pause", "resume"]
EVERY_TASK = AskTasks()


class AnyDoor(Protocol):
    """Questions, events, and jobs about no task. `asking.Door` says what each method does and raises."""

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


class Jobs(Protocol):
    """Jobs about tasks, and the bytes of an adapter. All raise ClientError when something is wrong or not permitted, NoAnswer."""

    async def submit(self, spec: TaskSpec | dict[str, JsonValue], task: str | None, *, timeout_s: float) -> Event:
        """The event `accepted`. `task`: its id, which may have been submitted before; None: a new one.

        Raises: WrongId; TaskRejected; NoAnswer.
        """
        ...

    async def preview(self, spec: TaskSpec | dict[str, JsonValue], *, timeout_s: float) -> Event:
        """The event `previewed`. Raises: TaskRejected when a field is wrong."""
        ...

    async def control(self, verb: Verb, status: TaskStatus, reason: str) -> None:
        """Raises: WrongState when the task has ended."""
        ...

    async def delete(self, status: TaskStatus, *, timeout_s: float) -> int:
        """Bytes freed. Raises: WrongState when the task has not ended."""
        ...

    async def resend(self, letter: int, *, timeout_s: float) -> None:
        """Raises: ClientError when there is no such letter, or its message is no longer needed."""
        ...

    async def blob(self, task: str, adapter: AdapterRef) -> bytes:
        """The adapter's blob, not compared with its digest yet."""
        ...
