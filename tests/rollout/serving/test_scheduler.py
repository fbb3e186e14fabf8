"""Preemption for served requests as on a GPU, where vLLM schedules the next step before the last one's tokens have come."""

from collections import deque
from dataclasses import replace
from typing import Any

import pytest
import torch

from rollout_svc.engine.config import URGENT_PRIORITY, EngineSettings, engine_arguments
from rollout_svc.engine.start import import_vllm
from tests.support.rollout.requests import POOL

BLOCK_TOKENS = 16
PROMPT_TOKENS = 20
BLOCKS = 5
"""One that vLLM keeps, three for two rollouts whose prompts share a block, and one for an urgent request that shares it too."""


@pytest.fixture(scope="module")
def config() -> Any:
    """vLLM's configuration of an engine that serves, with three places."""
    settings = replace(EngineSettings.of(POOL, device="cpu"), sequences=3, serving_sequences=1, serving_adapters=1)
    import_vllm(settings)
    config = engine_arguments(settings, cpu=True).create_engine_config()
    config.cache_config.num_gpu_blocks = BLOCKS
    return config


class Ahead:
    """`ServingScheduler` with a model whose steps end one after the next was scheduled. The token at each place is the place's number."""

    def __init__(self, config: Any) -> None:
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        from rollout_svc.coserving.scheduler import ServingScheduler

        layer = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=16, dtype=torch.float32)
        cache = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)])
        self.scheduler = ServingScheduler(
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

    def add(self, name: str, tokens: int, priority: int = 0) -> Any:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        params = SamplingParams(max_tokens=tokens, ignore_eos=True)
        params.update_from_generation_config({}, eos_token_id=1)
        request = Request(name, list(range(PROMPT_TOKENS)), params, None, priority=priority, block_hasher=self._hasher)
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


def test_rollout_that_is_preempted_with_a_token_in_flight_has_it_once(config: Any) -> None:
    """It could resume in the same step: its blocks, and its place, are free."""
    ahead = Ahead(config)
    ahead.add("first", 10)
    preempted = ahead.add("second", 10)
    ahead.schedule()
    assert ahead.schedule() == {"first": 1, "second": 1}
    ahead.deliver()
    ahead.add("served", 4, URGENT_PRIORITY)
    assert ahead.schedule().keys() == {"first", "served"}
    assert (preempted.num_preemptions, preempted.num_in_flight_tokens, ahead.delivered["second"]) == (1, 1, [PROMPT_TOKENS])
    for _ in range(20):
        ahead.deliver()
        ahead.schedule()
    assert ahead.delivered == {
        name: [*range(PROMPT_TOKENS, PROMPT_TOKENS + tokens)] for name, tokens in {"first": 10, "second": 10, "served": 4}.items()
    }
