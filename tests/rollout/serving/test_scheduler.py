"""Preemption for served requests as on a GPU, where vLLM schedules the next step before the last one's tokens have come."""

from dataclasses import replace
from typing import Any

import pytest

from rollout_svc.engine.config import URGENT_PRIORITY, EngineSettings, engine_arguments
from rollout_svc.engine.start import import_vllm
from tests.support.rollout.model_free import ModelFree
from tests.support.rollout.requests import POOL

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


def test_rollout_that_is_preempted_with_a_token_in_flight_has_it_once(config: Any) -> None:
    """It could resume in the same step: its blocks, and its place, are free."""
    from rollout_svc.coserving.preemption import ServingScheduler

    ahead, prompt = ModelFree(config, ServingScheduler), list(range(PROMPT_TOKENS))
    ahead.add("first", prompt, 10)
    preempted = ahead.add("second", prompt, 10)
    ahead.schedule()
    assert ahead.schedule() == {"first": 1, "second": 1}
    ahead.deliver()
    ahead.add("served", prompt, 4, URGENT_PRIORITY)
    assert ahead.schedule().keys() == {"first", "served"}
    assert (preempted.num_preemptions, preempted.num_in_flight_tokens, ahead.delivered["second"]) == (1, 1, [PROMPT_TOKENS])
    for _ in range(20):
        ahead.deliver()
        ahead.schedule()
    assert ahead.delivered == {
        name: [*range(PROMPT_TOKENS, PROMPT_TOKENS + tokens)] for name, tokens in {"first": 10, "second": 10, "served": 4}.items()
    }
