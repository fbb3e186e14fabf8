"""Latency goals with the real engine."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from common.errors import Fatal
from common.pools import Goals
from rollout_svc.coserving import figures
from rollout_svc.engine.config import EngineSettings
from rollout_svc.engine.engine import Engine
from rollout_svc.engine.profile import require_met
from rollout_svc.engine.stream import RequestGoals, StreamRequest, stream
from tests.rollout.engines import running_engine
from tests.support.rollout.requests import POOL, PROMPT, sample_request

ROLLOUTS = 64
GOALS = Goals(ttft_s=2.0, tpot_s=0.5)
"""What a busy machine meets, so that the engine starts."""


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def goal_engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    """`ROLLOUTS` sequences for rollouts and four for serving."""
    settings = replace(
        EngineSettings.of(POOL, device="cpu", cores=(0,)),
        sequences=ROLLOUTS + 4,
        serving_sequences=4,
        serving_adapters=1,
        invariant=True,
        goals=GOALS,
        training_share=0.1,
        figures=tmp_path_factory.mktemp("figures") / "replica",
    )
    async with running_engine(settings, warm=True) as running:
        yield running


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="session")
async def test_rollouts_beside_serving_wait_and_sample_the_same(goal_engine: Engine) -> None:
    engine = goal_engine
    requests = [sample_request([*PROMPT, number], seed=number, max_tokens=60, stop_ids=[]) for number in range(ROLLOUTS)]
    alone = await asyncio.gather(*map(engine.sample, requests))
    before = figures.read(engine.settings.figures)
    assert before is not None

    async def serve(number: int, tpot_s: float) -> float:
        """Seconds from one of its tokens to the next."""
        goals = RequestGoals(time.monotonic() + 1.0, tpot_s)
        request = StreamRequest(f"served-{number}", [*PROMPT, 30 + number], 30, seed=1, stop_ids=[], adapter=None, goals=goals)
        times = [time.monotonic() async for part in stream(engine, request) for _ in part.ids]
        assert len(times) == 30
        return (times[-1] - times[0]) / 29

    idle_s = min([await serve(number, 1.0) for number in range(3)])

    async def serving() -> list[float]:
        """A step with all rollouts takes more than twice as long as one with a request alone."""
        return [await serve(number, 1.7 * idle_s) for number in range(3, 7)]

    beside, _ = await asyncio.gather(
        asyncio.gather(*(engine.sample(replace(request, request_id=f"{request.request_id}-beside")) for request in requests)), serving()
    )
    assert beside == alone
    after = figures.read(engine.settings.figures)
    assert after is not None
    assert 0 < after.withheld_steps - before.withheld_steps < after.rollout_steps - before.rollout_steps
    assert (after.faults, after.preempted) == (0, 0)
    assert after.margin >= 1.0


def test_goals_that_an_idle_engine_misses_are_refused_with_what_it_takes() -> None:
    require_met(Goals(0.1, 0.01), 160, 0.09, 0.009)
    for first_s, next_s in ((0.11, 0.009), (0.09, 0.011)):
        with pytest.raises(Fatal, match=rf"ttft_ms = 100 and tpot_ms = 10, .* takes {1e3 * first_s:g} ms .* {1e3 * next_s:g} ms"):
            require_met(Goals(0.1, 0.01), 160, first_s, next_s)
