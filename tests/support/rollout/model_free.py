"""vLLM's scheduler without a model."""

from collections import deque
from typing import Any

import torch

BLOCK_TOKENS = 16


class ModelFree:
    """A scheduler with a model whose steps end when `deliver` is called. The token at each place is the place's number."""

    def __init__(self, config: Any, scheduler: Any) -> None:
        """`config`: vLLM's, with its number of blocks. `scheduler`: the class."""
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        layer = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=16, dtype=torch.float32)
        blocks = config.cache_config.num_gpu_blocks
        cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)])
        self.scheduler = scheduler(
            vllm_config=config,
            kv_cache_config=cache,
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_TOKENS,
            log_stats=False,
        )
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK_TOKENS, sha256)
        self._in_flight: deque[tuple[Any, list[int]]] = deque()
        self.delivered: dict[str, list[int]] = {}

    @property
    def in_flight(self) -> int:
        """Steps scheduled and not delivered."""
        return len(self._in_flight)

    def add(self, name: str, prompt: list[int], tokens: int, priority: int = 0, adapter: int = 0, extra: Any = None) -> Any:
        """Add a request. `adapter`: its number, 0 for none. `extra`: as vLLM's `extra_args`."""
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        params = SamplingParams(max_tokens=tokens, ignore_eos=True, extra_args=extra)
        params.update_from_generation_config({}, eos_token_id=1)
        lora = LoRARequest(f"adapter-{adapter}", adapter, "in-memory") if adapter else None
        request = Request(name, prompt, params, None, lora_request=lora, priority=priority, block_hasher=self._hasher)
        self.scheduler.add_request(request)
        self.delivered[name] = []
        return request

    def schedule(self) -> dict[str, int]:
        """Schedule a step; tokens of each request in it."""
        step = self.scheduler.schedule()
        places = [self.scheduler.requests[name].num_computed_tokens for name in step.num_scheduled_tokens]
        self._in_flight.append((step, places))
        return step.num_scheduled_tokens

    def deliver(self) -> None:
        """Deliver the tokens of the oldest step."""
        from vllm.v1.outputs import ModelRunnerOutput

        step, places = self._in_flight.popleft()
        names = list(step.num_scheduled_tokens)
        output = ModelRunnerOutput(names, {name: row for row, name in enumerate(names)}, [[place] for place in places])
        for outputs in self.scheduler.update_from_output(step, output).values():
            for one in outputs.outputs:
                self.delivered[one.request_id] += one.new_token_ids
