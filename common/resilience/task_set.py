"""Tasks beside their caller, with an owner that can wait for them or end them."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class TaskSet(set[asyncio.Task[None]]):
    """Tasks that run; each leaves the set when it is done."""

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work`."""
        return self.hold(asyncio.create_task(work))

    def hold(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        """Keep a task until it is done."""
        self.add(task)
        task.add_done_callback(self.discard)
        return task
