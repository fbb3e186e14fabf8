"""Engines without a model that serve under latency goals, with few places, blocks and adapters."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.pools import Goals
from rollout_svc.engine.config import GOALS, EngineSettings, engine_arguments
from rollout_svc.engine.start import import_vllm
from tests.support.rollout.model_free import ModelFree
from tests.support.rollout.requests import POOL

SEATS, SERVED_SEATS, BLOCKS = 12, 4, 60
ROLLOUT_SEATS = SEATS - SERVED_SEATS
PROMPT = list(range(20))


def configured() -> Callable[[Path], Any]:
    """vLLM's configuration of an engine with goals that writes its figures to a path."""
    settings = replace(
        EngineSettings.of(POOL, device="cpu"),
        sequences=SEATS,
        adapters=4,
        adapters_held=16,
        serving_sequences=SERVED_SEATS,
        serving_adapters=1,
        goals=Goals(0.1, 0.01),
        training_share=0.1,
        sleeps=True,
    )
    import_vllm(settings)

    def of(path: Path) -> Any:
        config = engine_arguments(replace(settings, figures=path), cpu=True).create_engine_config()
        config.cache_config.num_gpu_blocks = BLOCKS
        return config

    return of


def engine(configured: Callable[[Path], Any], path: Path) -> ModelFree:
    from rollout_svc.coserving.checks import SleepingCoservingScheduler

    return ModelFree(configured(path), SleepingCoservingScheduler)


def goals(ttft_s: float = 0.1, tpot_s: float = 0.01) -> dict[str, Any]:
    """`extra_args` of a request with goals."""
    return {GOALS: {"first_due_s": time.monotonic() + ttft_s, "tpot_s": tpot_s}}


def own_prompt(number: int) -> list[int]:
    """Six blocks of its own, and the first tokens of the next one."""
    return [number + 1] * 99
