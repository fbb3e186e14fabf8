"""vLLM's scheduler for pools that serve: urgent requests before rollouts.

Rollouts must not keep the last sequence slot, adapter slot or KV cache block from an urgent request. vLLM's
priorities only order waiting requests. A running request keeps its sequence slot and its adapter, and loses its blocks only to another
running request. So before each step, rollouts of lowest priority are preempted until every waiting urgent request fits. A preempted
rollout keeps its sampled tokens and its random generator, waits at its old rank, and recomputes its KV cache. The number of served
requests is limited before they reach the engine (`serving/admission.py`).
Measured on the tiny model with all sequences, slots and cache in use: median time to first token is 32 ms with preemption and 3.7 s
without. Reserving the blocks that rollouts may need at most would leave most of the cache empty, as they end early.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from copy import copy
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import RequestQueue, create_request_queue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from rollout_svc.engine.config import ROLLOUT_ADAPTERS, URGENT_PRIORITY


class ServingScheduler(AsyncScheduler):
    """Preempts rollouts for urgent requests.

    `AsyncScheduler` is vLLM's default on GPUs, and equals `Scheduler` if asynchronous scheduling is off, as on a CPU."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rollout_adapters = rollout_adapters(self.vllm_config)
        self.serving: list[Request] = []  # urgent requests that run, when a step begins: none of them is preempted in it
        assert self.lora_config is not None
        self._most_adapters = self.lora_config.max_loras
        self.lora_config = copy(self.lora_config)  # its maximum changes with each step; the worker keeps the original

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        if self._pause_state == PauseState.PAUSED_ALL:
            return super().schedule(*args, **kwargs)
        urgent = first(self.waiting, is_urgent)
        self.serving = [request for request in self.running if request.priority <= URGENT_PRIORITY]
        self._make_room(urgent)
        self._limit_adapters(urgent)
        with self._visible(urgent):
            return super().schedule(*args, **kwargs)

    @contextmanager
    def _visible(self, urgent: list[Request]) -> Generator[None]:  # noqa: ARG002 (without goals all are visible)
        """Inside the block the scheduler has only requests that may run. `urgent`: those that wait, the next one first."""
        yield

    def _make_room(self, urgent: list[Request]) -> None:
        """Preempt rollouts until the urgent requests have sequence slots, adapter slots, and KV cache blocks for their prompts."""
        if urgent:
            self._free_slots(urgent)
            self._clear_blocks(urgent)

    def _free_slots(self, urgent: list[Request]) -> None:
        """Free sequence slots, of the last rollouts, and adapter slots, of the adapters with the fewest rollouts."""
        short = len(self.running) + len(urgent) - self.max_num_running_reqs
        for rollout in self._rollouts()[:short] if short > 0 else ():
            self._preempt_rollout(rollout)
        wanted = adapters_of([*urgent, *self.serving])
        sharing = Counter(map(adapter_of, self.running))
        rarest = sorted(sharing.keys() - wanted - {0}, key=lambda adapter: sharing[adapter])
        unwanted = set(rarest[: max(0, len(wanted) + len(rarest) - self._most_adapters)])
        for rollout in [request for request in self.running if adapter_of(request) in unwanted]:
            self._preempt_rollout(rollout)

    def _clear_blocks(self, urgent: list[Request], surplus: int = 0) -> None:
        """Preempt the last rollouts, which have `surplus` blocks, and further ones until the urgent requests have blocks."""
        if surplus <= 0 and self._missing_blocks(urgent) <= 0:
            return
        for rollout in self._rollouts():
            surplus -= self.blocks(rollout)
            self._preempt_rollout(rollout)
            if surplus <= 0 and self._missing_blocks(urgent) <= 0:
                return

    def blocks(self, request: Request) -> int:
        """KV cache blocks of a running request, or those that a waiting one needs for its prompt."""
        return len(self.kv_cache_config.kv_cache_groups) * ((request.num_computed_tokens or request.num_tokens) // self.block_size + 1)

    def blocks_of_rollouts(self) -> int:
        return sum(self.blocks(request) for request in self.running if not is_urgent(request))

    def _missing_blocks(self, urgent: list[Request]) -> int:
        """KV cache blocks that the prompts of urgent requests lack, beyond those that running requests need in this step.

        Without such prompts: those that running urgent requests lack, as rollouts may wait for theirs.
        """
        growing = self.running if urgent else self.serving
        begun = sum(request.num_computed_tokens % self.block_size == 0 for request in growing)
        needed = begun + sum(request.num_tokens // self.block_size + 1 for request in urgent)
        return len(self.kv_cache_config.kv_cache_groups) * needed - self.kv_cache_manager.block_pool.get_num_free_blocks()

    def _limit_adapters(self, urgent: list[Request]) -> None:
        """Keep rollouts off the adapter slots reserved for serving; running requests keep theirs."""
        running, serving = adapters_of(self.running), adapters_of([*urgent, *self.serving])
        assert self.lora_config is not None
        self.lora_config.max_loras = max(len(running), min(self._most_adapters, self._rollout_adapters + len(serving)))

    def _rollouts(self) -> list[Request]:
        """Running rollouts in order of preemption: the last in vLLM's scheduling order first."""
        return sorted((request for request in self.running if not is_urgent(request)), reverse=True)

    def _preempt_rollout(self, request: Request) -> None:
        """Preempt a running rollout. A token of it that is in flight is still delivered; until then vLLM does not resume the rollout."""
        self.running.remove(request)
        # If it resumes in the same step, the model runner must not treat it as a request that kept running.
        self.prev_step_scheduled_req_ids.discard(request.request_id)
        self._preempt_request(request, 0.0)


def rollout_adapters(config: Any) -> int:
    """Maximum adapters of rollouts in a batch. `Any`: vLLM's types are loose."""
    return int(config.additional_config[ROLLOUT_ADAPTERS])


def is_urgent(request: Request) -> bool:
    return request.priority <= URGENT_PRIORITY


def adapter_of(request: Request) -> int:
    """Number of the request's adapter; 0 for the base model."""
    return request.lora_request.lora_int_id if request.lora_request else 0


def adapters_of(requests: Iterable[Request]) -> set[int]:
    """Numbers of their adapters, without the base model's 0."""
    return {adapter_of(request) for request in requests} - {0}


def first(queue: RequestQueue, wanted: Callable[[Request], bool], most: int | None = None) -> list[Request]:
    """The queue's first requests, up to the first one that is not wanted. Iterating over a queue would sort all of it."""
    found: list[Request] = []
    while queue and (most is None or len(found) < most) and wanted(queue.peek_request()):
        found.append(queue.pop_request())
    queue.prepend_requests(reversed(found))
    return found


@contextmanager
def only(scheduler: Scheduler, waiting: list[Request], running: list[Request]) -> Generator[None]:
    """Inside the block the scheduler has only these of its requests. Afterwards hidden ones are back where they were."""
    queue, holding, before = scheduler.waiting, scheduler.kv_holding_waiting, scheduler.running
    if waiting:  # otherwise the heap would be built again
        queue.remove_requests(waiting)
    scheduler.waiting, scheduler.kv_holding_waiting = create_request_queue(scheduler.policy), create_request_queue(scheduler.policy)
    for request in waiting:
        scheduler.waiting.add_request(request)
    scheduler.running = list(running)
    try:
        yield
    finally:
        queue.prepend_requests(scheduler.waiting)
        holding.prepend_requests(scheduler.kv_holding_waiting)
        scheduler.waiting, scheduler.kv_holding_waiting = queue, holding
        if len(running) < len(before):
            shown, left = set(running), set(scheduler.running)
            entered = [request for request in scheduler.running if request not in shown]
            scheduler.running = [request for request in before if request in left or request not in shown] + entered
