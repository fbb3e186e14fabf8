"""vLLM schedulers of this service; they run in the engine's process.

For pools that serve: rollouts must not keep the last sequence slot, adapter slot or KV cache block from an urgent request. vLLM's
priorities only order waiting requests. A running request keeps its sequence slot and its adapter, and loses its blocks only to another
running request. So before each step, rollouts of lowest priority are preempted until every waiting urgent request fits. A preempted
rollout keeps its sampled tokens and its random generator, waits at its old rank, and recomputes its KV cache. The number of served
requests is limited before they reach the engine (`serving/admission.py`).
Measured on the tiny model with all sequences, slots and cache in use: median time to first token is 32 ms with preemption and 3.7 s
without. Reserving the blocks that rollouts may need at most would leave most of the cache empty, as they end early.

For engines that sleep: checks run while all other requests are frozen. After a wake, checks compare log-probabilities, and nothing else
may be sampled before they agree. vLLM's pause mode "keep" schedules nothing at all. These schedulers run checks,
recognized by their priority, as if there were no other requests.
"""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from copy import copy
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import RequestQueue, create_request_queue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from rollout_svc.engine.config import CHECK_PRIORITY, ROLLOUT_ADAPTERS, URGENT_PRIORITY


class ServingScheduler(AsyncScheduler):
    """Preempts rollouts for urgent requests.

    `AsyncScheduler` is vLLM's default on GPUs, and equals `Scheduler` if asynchronous scheduling is off, as on a CPU."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rollout_adapters = rollout_adapters(self.vllm_config)
        assert self.lora_config is not None
        self._most_adapters = self.lora_config.max_loras
        self.lora_config = copy(self.lora_config)  # its maximum changes with each step; the worker keeps the original

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        urgent = sorted(request for request in self.requests.values() if _is_urgent(request) and _is_waiting(request))
        if urgent:
            self._seats_for_urgent(urgent)
            self._slots_for_urgent(urgent)
            self._blocks_for_urgent(urgent)
        self._limit_adapters(urgent)
        return super().schedule(*args, **kwargs)

    def _seats_for_urgent(self, urgent: list[Request]) -> None:
        short = len(self.running) + len(urgent) - self.max_num_running_reqs
        for victim in self._rollouts()[: max(0, short)]:
            self._preempt_rollout(victim)

    def _slots_for_urgent(self, urgent: list[Request]) -> None:
        """Free adapter slots: preempt all rollouts of the adapters with the fewest rollouts."""
        wanted = {_adapter(request) for request in urgent} | {_adapter(request) for request in self.running if _is_urgent(request)}
        wanted.discard(0)
        rollouts = Counter(adapter for request in self._rollouts() if (adapter := _adapter(request)) and adapter not in wanted)
        rarest = sorted(rollouts, key=lambda adapter: rollouts[adapter])
        unwanted = set(rarest[: max(0, len(wanted) + len(rollouts) - self._most_adapters)])
        for victim in [request for request in self._rollouts() if _adapter(request) in unwanted]:
            self._preempt_rollout(victim)

    def _blocks_for_urgent(self, urgent: list[Request]) -> None:
        """Free KV cache blocks for the prompts of urgent requests, beyond those that running requests need in this step."""
        groups, pool = len(self.kv_cache_config.kv_cache_groups), self.kv_cache_manager.block_pool
        needed = groups * sum(request.num_tokens // self.block_size + 1 for request in urgent)
        for victim in [None, *self._rollouts()]:
            if victim is not None:
                self._preempt_rollout(victim)
            begun = groups * sum(request.num_computed_tokens % self.block_size == 0 for request in self.running)
            if pool.get_num_free_blocks() >= needed + begun:
                return

    def _limit_adapters(self, urgent: list[Request]) -> None:
        """Keep rollouts off the adapter slots reserved for serving; running requests keep theirs."""
        running = {_adapter(request) for request in self.running} - {0}
        serving = {_adapter(request) for request in [*urgent, *self.running] if _is_urgent(request)} - {0}
        assert self.lora_config is not None
        self.lora_config.max_loras = max(len(running), min(self._most_adapters, self._rollout_adapters + len(serving)))

    def _rollouts(self) -> list[Request]:
        """Running rollouts in order of preemption: the last in vLLM's scheduling order first."""
        return sorted((request for request in self.running if not _is_urgent(request)), reverse=True)

    def _preempt_rollout(self, request: Request) -> None:
        """Preempt a running rollout. A token of it that is in flight is still delivered; until then vLLM does not resume the rollout."""
        self.running.remove(request)
        # If it resumes in the same step, the model runner must not treat it as a request that kept running.
        self.prev_step_scheduled_req_ids.discard(request.request_id)
        self._preempt_request(request, 0.0)


def rollout_adapters(config: Any) -> int:
    """Maximum adapters of rollouts in a batch. `Any`: vLLM's types are loose."""
    return int(config.additional_config[ROLLOUT_ADAPTERS])


def _is_urgent(request: Request) -> bool:
    return request.priority <= URGENT_PRIORITY


def _is_waiting(request: Request) -> bool:
    return request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)


def _adapter(request: Request) -> int:
    """Number of the request's adapter; 0 for the base model."""
    return request.lora_request.lora_int_id if request.lora_request else 0


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
