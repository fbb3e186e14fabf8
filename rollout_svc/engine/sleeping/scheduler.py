"""vLLM's scheduler for engines that sleep: while all requests are frozen, checks run.

A wake is followed by requests that compare log-probabilities, and nothing else may be sampled before these have agreed. vLLM's pause of the
mode "keep" schedules nothing at all. Here it schedules checks, known by their priority, as if no other requests were there.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import RequestQueue, create_request_queue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from rollout_svc.engine.config import CHECK_PRIORITY
from rollout_svc.engine.scheduler import ServingScheduler


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
        """Inside, the queues have checks only, and the scheduler is not paused."""
        waiting, holding, running = self.waiting, self.kv_holding_waiting, self.running
        self.waiting, self.kv_holding_waiting = self._queue(filter(_is_check, waiting)), self._queue(())
        self.running = list(filter(_is_check, running))
        self._pause_state = PauseState.UNPAUSED
        try:
            yield
        finally:
            self._pause_state = PauseState.PAUSED_ALL
            self.waiting.prepend_requests(filter(_is_frozen, waiting))
            self.kv_holding_waiting.prepend_requests(holding)
            self.running = [*filter(_is_frozen, running), *self.running]

    def _queue(self, requests: Any) -> RequestQueue:
        queue = create_request_queue(self.policy)
        for request in requests:
            queue.add_request(request)
        return queue


class SleepingScheduler(_ChecksWhilePaused, AsyncScheduler):
    pass


class SleepingServingScheduler(_ChecksWhilePaused, ServingScheduler):
    pass


def _is_check(request: Request) -> bool:
    return request.priority <= CHECK_PRIORITY


def _is_frozen(request: Request) -> bool:
    return not _is_check(request)
