"""vLLM's schedulers for engines that sleep: checks run while all other requests are frozen.

After a wake, checks compare log-probabilities, and nothing else may be sampled before they agree. vLLM's pause mode "keep" schedules
nothing at all. These schedulers run checks, recognized by their priority, as if there were no other requests.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from rollout_svc.coserving.preemption import ServingScheduler, first, only
from rollout_svc.coserving.scheduler import CoservingScheduler
from rollout_svc.engine.config import CHECK_PRIORITY


class _ChecksWhilePaused(Scheduler):
    def get_num_unfinished_requests(self) -> int:
        if self._pause_state != PauseState.PAUSED_ALL:
            return super().get_num_unfinished_requests()
        return sum(map(_is_check, self.requests.values()))

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        if self._pause_state != PauseState.PAUSED_ALL or not any(map(_is_check, self.requests.values())):
            return super().schedule(*args, **kwargs)
        with self._without_frozen():
            return super().schedule(*args, **kwargs)

    @contextmanager
    def _without_frozen(self) -> Generator[None]:
        """Inside the block the queues contain only checks, and the scheduler is not paused."""
        self._pause_state = PauseState.UNPAUSED
        try:
            with only(self, first(self.waiting, _is_check), list(filter(_is_check, self.running))):
                yield
        finally:
            self._pause_state = PauseState.PAUSED_ALL


class SleepingScheduler(_ChecksWhilePaused, AsyncScheduler):
    pass


class SleepingServingScheduler(_ChecksWhilePaused, ServingScheduler):
    pass


class SleepingCoservingScheduler(_ChecksWhilePaused, CoservingScheduler):
    pass


def _is_check(request: Request) -> bool:
    return request.priority <= CHECK_PRIORITY
