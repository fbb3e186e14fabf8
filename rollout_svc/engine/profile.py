"""Profile of an idle engine: steps from which its scheduler learns how long steps take, and whether its latency goals can be met at all."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from random import Random
from statistics import median

from common.errors import Fatal
from common.pools import Goals
from rollout_svc.engine.config import EngineSettings
from rollout_svc.engine.work import WARM_UP_TOKENS, Sampled, SampleRequest

PROMPT_TOKENS = 160
"""Tokens of a measured prompt; fewer if the context is short."""
PROMPTS = (PROMPT_TOKENS, PROMPT_TOKENS // 4, 4)
"""Tokens of the prompts of the profile."""
TOKENS = 24
"""Tokens of a measured reply."""
TIMES = 5


async def require_goals(sample: Callable[[SampleRequest], Awaitable[Sampled]], settings: EngineSettings, priority: int) -> None:
    """Run an idle engine's profile. Raises: Fatal if the idle engine misses the goals of `settings`."""
    if settings.goals is None:
        return
    rollouts = settings.sequences - settings.serving_sequences
    random, prompt = Random(0), min(PROMPT_TOKENS, settings.context_tokens - TOKENS)

    async def took_s(count: int, prompt: int, tokens: int) -> float:
        """Seconds in which `count` requests are sampled concurrently. None of them shares a prefix."""
        began_s = time.monotonic()
        await asyncio.gather(*(sample(_request(random, prompt, tokens, priority)) for _ in range(count)))
        return time.monotonic() - began_s

    for count in sorted({rollouts, max(1, rollouts // 2), max(1, rollouts // 8)}, reverse=True):
        for tokens in PROMPTS:
            await took_s(count, min(prompt, tokens), TOKENS // 2)
    first_s = median([await took_s(1, prompt, 1) for _ in range(TIMES)])
    next_s = median([(await took_s(1, prompt, TOKENS) - first_s) / (TOKENS - 1) for _ in range(TIMES)])
    require_met(settings.goals, prompt, first_s, next_s)


def _request(random: Random, prompt: int, tokens: int, priority: int) -> SampleRequest:
    ids = [random.randrange(WARM_UP_TOKENS) for _ in range(prompt)]
    return SampleRequest(f"profile:{random.getrandbits(64)}", ids, tokens, 1.0, seed=1, stop_ids=[], adapter=None, priority=priority)


def require_met(goals: Goals, prompt: int, first_s: float, next_s: float) -> None:
    """Raises: Fatal if an idle engine misses the goals. It takes `first_s` to a first token after `prompt` tokens, `next_s` to others."""
    if first_s > goals.ttft_s or next_s > goals.tpot_s:
        raise Fatal(
            f"the pool says ttft_ms = {1e3 * goals.ttft_s:g} and tpot_ms = {1e3 * goals.tpot_s:g}, but this engine, idle, takes "
            f"{1e3 * first_s:.3g} ms to the first token after a prompt of {prompt} tokens and {1e3 * next_s:.2g} ms for each further one; "
            "raise the goals to twice that or more"
        )
