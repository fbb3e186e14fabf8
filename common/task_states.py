"""States of tasks, read from the key-value bucket that the scheduler writes."""

from collections.abc import Callable

from common.bus import REREAD_S, Bus, FollowedBucket
from common.messages import TaskStatus
from common.streams import TASKS_BUCKET

ENDED = frozenset({"finished", "cancelled", "failed", "rejected"})
"""Final states; an event with the state's name announces each. A task's work in flight, evaluations included, is void from then on."""
LIVE = frozenset({"submitted", "running", "paused"})


class TaskStates:
    """Latest known state of every task. An unknown task counts as not ended."""

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

    async def follow(self, bus: Bus, ended: Callable[[str], None], *, reread_s: float = REREAD_S) -> None:
        """Update the states until cancelled; `ended` is called with each task found not to be live."""

        def note(task: str, status: TaskStatus | None) -> None:
            if status is not None:
                self._states[task] = status.state
                if status.state not in LIVE:
                    ended(task)
            elif not self.has_ended(task):  # deleted: an ended task stays ended
                self._states.pop(task, None)

        await FollowedBucket(bus, TASKS_BUCKET, TaskStatus, note, reread_s=reread_s).follow()
