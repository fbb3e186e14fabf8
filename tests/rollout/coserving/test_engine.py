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

GOALS = Goals(ttft_s=2.0, tpot_s=0.5)
"""What a busy machine meets, so that the engine starts."""


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def goal_engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    """Sixteen sequences for rollouts and four for serving."""
    settings = replace(
        EngineSettings.of(POOL, device="cpu", cores=(0,)),
        sequences=20,
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
    requests = [sample_request([*PROMPT, number], seed=number, max_tokens=200, stop_ids=[]) for number in range(16)]
    alone = await asyncio.gather(*map(engine.sample, requests))
    before = figures.read(engine.settings.figures)
    assert before is not None

    async def serve(number: int) -> int:
        """A request whose tokens are due at once, as long as it can catch up."""
        goals = RequestGoals(time.monotonic() + 0.05, tpot_s=0.004)
        request = StreamRequest(f"served-{number}", [*PROMPT, 30 + number], 40, seed=1, stop_ids=[], adapter=None, goals=goals)
        return sum([len(part.ids) async for part in stream(engine, request)])

    async def serving() -> list[int]:
        return [await serve(number) for number in range(8)]

    beside, served = await asyncio.gather(
        asyncio.gather(*(engine.sample(replace(request, request_id=f"{request.request_id}-beside")) for request in requests)), serving()
    )
    assert served == [40] * 8
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
