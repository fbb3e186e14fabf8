"""States of tasks, from the key-value bucket that the scheduler keeps."""

from collections.abc import AsyncIterator

from common.bus import Bus
from common.messages import TaskStatus
from common.streams import TASKS_BUCKET

ENDED = frozenset({"finished", "cancelled", "failed", "rejected"})
"""Final states, and names of events: work of the task that is in flight is void, evaluations too."""
LIVE = frozenset({"submitted", "running", "paused"})


class TaskStates:
    """Latest known state of every task. An unknown task has not ended."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}

    def has_ended(self, task: str) -> bool:
        return self._states.get(task) in ENDED

    def is_live(self, task: str) -> bool:
        """Whether the task is known and not ended."""
        return self._states.get(task) in LIVE

    async def read(self, bus: Bus) -> None:
        """Read every current state; waits until NATS answers."""
        found = await bus.retry_until_ready(lambda: bus.kv.values(TASKS_BUCKET, TaskStatus))
        self._states = {status.task: status.state for status in found}

    async def ended_tasks(self, bus: Bus) -> AsyncIterator[str]:
        """Ids of tasks that are not live, each as it becomes known."""
        async for task, status in bus.kv.watch(TASKS_BUCKET, TaskStatus):
            if status is None:  # deleted: an ended one stays ended
                if not self.has_ended(task):
                    self._states.pop(task, None)
                continue
            self._states[task] = status.state
            if status.state not in LIVE:
                yield task
