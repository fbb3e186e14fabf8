"""Which waiting rollouts may enter the engine's batch: those with an adapter slot, and room in the KV cache to grow."""

import time

from vllm.v1.request import Request

from rollout_svc.coserving.plan import PROMPTS_SEEN
from rollout_svc.coserving.preemption import ServingScheduler, adapter_of, adapters_of, first, is_urgent
from rollout_svc.coserving.pressure import Cut, Lengths, Peak, growth


class RolloutEntry:
    """The entry of rollouts into a scheduler's batch."""

    def __init__(self, scheduler: ServingScheduler) -> None:
        self._scheduler = scheduler
        self._lengths = {True: Lengths(), False: Lengths()}  # of urgent requests, and of rollouts
        self._serving_blocks = Peak()
        self._reserved = 0

    def ended(self, request: Request) -> None:
        """Learn from the length of a request that ended."""
        if request.num_output_tokens > 1:  # not aborted at its begin, and no check
            self._lengths[is_urgent(request)].add(request.num_output_tokens)

    def reserve(self, urgent: list[Request]) -> None:
        """Before each step: keep blocks for `urgent`, which wait, and as many as served requests had lately."""
        waiting = sum(map(self._scheduler.blocks, urgent))
        serving = waiting + sum(map(self._scheduler.blocks, self._scheduler.serving))
        most_blocks = self._scheduler.cache_config.num_gpu_blocks or 0
        self._reserved = waiting + min(self._serving_blocks.of(serving, time.monotonic()) - serving, most_blocks // 2)

    def rollouts(self, urgent: list[Request], most: int, limit: Cut | None) -> list[Request]:
        """At most `most` waiting rollouts that may enter, the next ones behind `urgent`."""
        after, lora = len(urgent), self._scheduler.lora_config
        assert lora is not None
        adapters = adapters_of(self._scheduler.running)
        found: list[Request] = []

        def seek(request: Request) -> bool:
            """Take the request if it has an adapter slot. Returns: whether to look at the next one, too."""
            nonlocal after
            after -= 1
            if after >= 0:
                return True
            adapter = adapter_of(request)
            if not adapter or adapter in adapters or len(adapters) < lora.max_loras:
                adapters.update({adapter} - {0})
                found.append(request)
            return len(found) < most

        if most > 0:  # each look into a heap costs comparisons
            first(self._scheduler.waiting, seek, after + PROMPTS_SEEN)
        return found[: self._with_room(found, limit)] if found else found

    def _with_room(self, prompts: list[Request], limit: Cut | None) -> int:
        """Number of prompts, the first ones, that fit below the limit, and leave all running requests room to grow; one if none runs."""
        scheduler, block = self._scheduler, self._scheduler.block_size
        groups, manager = len(scheduler.kv_cache_config.kv_cache_groups), scheduler.kv_cache_manager
        free = block * (manager.block_pool.get_num_free_blocks() - self._reserved) // groups
        below = block * (limit.blocks - scheduler.blocks_of_rollouts()) // groups if limit is not None else free
        requests = [(self._left(request), request.num_output_tokens) for request in scheduler.running]
        most = sum(left for left, _ in requests)  # if none released tokens
        tokens = 0
        for count, request in enumerate(prompts):
            # A preempted rollout's blocks may still be cached, but they count as free.
            cached = 0 if request.num_output_tokens else manager.get_computed_blocks(request)[1]
            needed, left = block * ((request.num_tokens - cached) // block + 1), self._left(request)
            tokens, most = tokens + needed, most + left
            requests.append((left, needed))
            if tokens > below or tokens + most > free < tokens + growth(requests):
                return max(count, int(not scheduler.running))
        return len(prompts)

    def _left(self, request: Request) -> int:
        """Estimate of the tokens that the request still samples."""
        return self._lengths[is_urgent(request)].left(request.num_output_tokens, request.max_tokens)
