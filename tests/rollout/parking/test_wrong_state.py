"""What is inside an engine that woke wrong is handed back, so that a new engine can be started.

A buffer of the model that was lost is in no file, so that no other wake brings it back.
"""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from common.accelerators import StateMismatch, Tier
from common.blobs import Blobs
from common.bus import Bus
from common.errors import HandedBack
from rollout_svc.accelerators.sampler import Sampler
from rollout_svc.accelerators.tiers import Parking
from rollout_svc.adapters import Adapters
from rollout_svc.engine.engine import Engine
from rollout_svc.engine.stream import StreamPart, StreamRequest, stream
from rollout_svc.serving.admission import Admission
from rollout_svc.serving.request import ServingContext
from rollout_svc.text.chat import Chat
from tests.rollout.oracle import Oracle
from tests.rollout.parking.parked_work import ids_of, returned
from tests.rollout.parking.sleeping import damage, no_adapters, progressed, sleeping_settings, versions
from tests.rollout.parking.standing import Standing
from tests.rollout.stage import first_turns, group_of, performing
from tests.support.rollout.replicas import CONTEXT, Replica, Source
from tests.support.rollout.replicas import performing as at_gateway
from tests.support.rollout.requests import sample_request
from tests.support.waiting import at_work, eventually


async def test_requests_inside_are_handed_back_and_the_engine_is_started_anew() -> None:
    engine = Standing()
    parking = Parking(engine)
    await parking.wake(no_adapters)
    first = engine.process.llm
    requests = [sample_request() for _ in range(2)]
    inside = [asyncio.create_task(engine.sample(request)) for request in requests]
    await eventually(lambda: engine.work.inside == 2)
    await parking.park(Tier.HOST)
    late = asyncio.create_task(engine.sample(sample_request()))
    await parking.park(Tier.NONE)
    assert parking.tier is Tier.DISK, "nothing is wrong yet"
    engine.standing.is_damaged = True
    with pytest.raises(StateMismatch, match="computes other log-probabilities"):
        await parking.wake(no_adapters)
    await parking.park(Tier.NONE)  # as its follower does
    assert (parking.tier, engine.process.is_open) == (Tier.NONE, False)
    assert [type(one) for one in await asyncio.gather(*inside, return_exceptions=True)] == [HandedBack] * 2
    assert first.aborted == [request.request_id for request in requests]
    await parking.wake(no_adapters)
    await eventually(lambda: engine.work.inside == 1)  # the one that waited at the gate
    assert engine.process.llm is not first
    await parking.park(Tier.NONE)
    assert parking.tier is Tier.DISK, "what woke was right"
    late.cancel()
    await asyncio.wait([late])


async def test_served_request_that_is_handed_back_is_continued_by_its_next_attempt(bus: Bus) -> None:
    class Closing(Source):
        async def sample(self, request: StreamRequest) -> AsyncGenerator[StreamPart]:
            async for part in super().sample(request):
                yield part
                if len(self.begun) == 1:
                    raise HandedBack("this replica closes its engine")

    async with at_gateway(bus) as stage:
        replica = await stage.replica()
        source = Closing()
        replica.serving._context = replace(replica.serving._context, sample=source.sample)
        answer = await stage.answer(stage.request(max_tokens=20))
        assert (len(answer.ids), answer.last.finish) == (20, "length")
        assert len(source.begun) == 2


@pytest.mark.slow
async def test_turns_and_served_requests_inside_a_real_engine_are_lost_by_nobody(
    bus: Bus, model_folder: Path, with_faults: None, endless: Chat, blobs: Blobs, oracle: Oracle, tmp_path: Path
) -> None:
    engine = await Engine.start(sleeping_settings(model_folder))
    held = Adapters(engine, blobs, tmp_path / "adapters", keep=2, keep_s=60, tolerance=engine.canary_tolerance)
    (ref,) = await versions(blobs, oracle, "wrong")
    try:
        async with at_work(held.run()), performing(bus, engine, endless, held) as rollouts, at_gateway(bus) as stage:
            means = ServingContext(endless, held, partial(stream, engine), Admission(1, 1), CONTEXT, None, "engine")
            replica, other = Replica(bus, "wrong", means=means), Replica(bus, "other", means=replace(means, sample=Source().sample))
            stage.replicas += [replica, other]
            sampler = Sampler(engine, held, rollouts.rollout, [rollouts.slots, replica.slots], replica.serving)
            first, group = [group_of("wrong", group=number, adapter=ref, max_tokens=200) for number in range(2)]
            undisturbed, before = await rollouts.answer(first, *first_turns(range(4))), returned()
            await rollouts.ask(group, *first_turns(range(4)))
            replica.start()
            served = asyncio.create_task(stage.answer(stage.request(max_tokens=200)))
            await eventually(lambda: engine.work.inside == 5)
            await progressed(engine, 40)
            await sampler.park(Tier.HOST, 0)
            await damage(engine, "drop_buffer")
            with pytest.raises(StateMismatch, match="computes other log-probabilities"):
                await sampler.wake()
            assert engine.work.inside == 5
            await sampler.park(Tier.NONE, 0)
            assert (sampler.tier, engine.process.is_open, engine.work.inside) == (Tier.NONE, False, 0)
            await eventually(lambda: returned() == before + 1)
            other.start()
            answer = await served
            assert (len(answer.ids), answer.last.finish) == (200, "length")
            await sampler.wake()
            await eventually(lambda: len(rollouts.turns(group)) == 4)
            assert ids_of(rollouts.turns(group)) == ids_of(undisturbed)
            await eventually(rollouts.is_idle)
    finally:
        engine.process.close()
