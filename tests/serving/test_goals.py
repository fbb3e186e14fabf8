"""Served requests under latency goals, through NATS: what the engine is given, and what counts as met."""

import asyncio
import time

import pytest

from common import streams
from common.bus import Bus
from common.messages import PoolOffer, ReplicaReport, ServedSampling
from common.pools import Goals
from gateway_svc.openai.sampling.choices import Choice, Prompt, Replicas, Target
from gateway_svc.serving.pools import Offers, Restarts
from gateway_svc.serving.progress import SILENT_S
from tests.support.rollout.books import version
from tests.support.rollout.replicas import QUESTION, performing
from tests.support.waiting import eventually

EASY = Goals(ttft_s=20.0, tpot_s=2.0)
HARD = Goals(ttft_s=0.001, tpot_s=2.0)


async def test_engine_is_given_the_deadline_that_counts_from_the_gateways_request(bus: Bus) -> None:
    async with performing(bus) as stage:
        replica = await stage.replica(goals=EASY)
        asked = stage.request(20, asked_s=bus.clock.now_s() - 5.0)
        assert (await stage.answer(asked)).last.finish == "length"
        [begun] = replica.source.begun
        assert begun.goals is not None and begun.goals.tpot_s == EASY.tpot_s
        assert 13.0 < begun.goals.first_due_s - time.monotonic() <= 15.0
        assert replica.tally.busy == {"goals_met": 1.0}


async def test_pool_without_goals_gives_the_engine_none_and_counts_nothing(bus: Bus) -> None:
    async with performing(bus) as stage:
        replica = await stage.replica()
        await stage.answer(stage.request(20, asked_s=bus.clock.now_s()))
        assert [one.goals for one in replica.source.begun] == [None]
        assert (replica.tally.busy, stage.client.tally.busy) == ({}, {})


@pytest.mark.parametrize("goals", [EASY, None])
async def test_loads_of_adapters_wait_only_while_a_first_token_is_due_under_goals(bus: Bus, goals: Goals | None) -> None:
    async with performing(bus) as stage:
        replica = await stage.replica(goals=goals)
        calm, source = replica.adapters.calm, replica.source
        source.may_begin.clear()
        gone, answered = (asyncio.create_task(stage.answer(stage.request(20))) for _ in range(2))
        await eventually(lambda: len(source.begun) == 2)
        assert calm.is_set() == (goals is None)
        gone.cancel()
        await eventually(lambda: replica.serving.requests == 1)
        assert calm.is_set() == (goals is None)
        source.may_go_on.clear()
        source.may_begin.set()
        await eventually(calm.is_set)
        assert source.running
        source.may_go_on.set()
        assert (await answered).last.finish == "length"


@pytest.mark.parametrize("load_s", [0.0, 0.05])
async def test_late_first_token_is_cold_where_the_version_had_to_be_loaded(bus: Bus, load_s: float) -> None:
    async with performing(bus) as stage:
        replica = await stage.replica(goals=HARD)
        replica.adapters.load_s = load_s
        for _ in range(2):
            await stage.answer(stage.request(5, adapter=version(3), asked_s=bus.clock.now_s()))
        assert replica.tally.busy == ({"goals_cold": 1.0, "goals_first": 1.0} if load_s else {"goals_first": 2.0})


async def test_slow_tokens_are_missed(bus: Bus) -> None:
    async with performing(bus) as stage:
        replica = await stage.replica(goals=Goals(ttft_s=20.0, tpot_s=0.0001))
        await stage.answer(stage.request(20))
        assert replica.tally.busy == {"goals_next": 1.0}


async def test_stream_that_another_replica_continues_has_missed_there(bus: Bus) -> None:
    async with performing(bus, silent_s=SILENT_S) as stage:
        first = await stage.replica(goals=EASY)
        running = asyncio.create_task(stage.answer(stage.request(150, asked_s=bus.clock.now_s())))
        await eventually(lambda: first.wire.told > 5)
        second = await stage.replica(goals=EASY)
        await first.die()
        assert (await running).last.finish == "length"
        assert (first.tally.busy, second.tally.busy) == ({}, {"goals_next": 1.0})


async def test_request_that_is_overdue_or_whose_client_goes_late_is_missed(bus: Bus) -> None:
    async with performing(bus) as stage:
        replica = await stage.replica(goals=HARD)
        replica.source.may_begin.clear()
        assert (await stage.answer(stage.request(20, wait_s=0.3))).last.failure == "overdue"
        gone = asyncio.create_task(stage.answer(stage.request(20)))
        await eventually(lambda: len(replica.source.begun) == 2)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        await eventually(lambda: replica.tally.busy == {"goals_first": 2.0})


async def test_request_that_is_refused_as_wrong_is_no_miss(bus: Bus) -> None:
    async with performing(bus) as stage:
        replica = await stage.replica(goals=EASY)
        assert (await stage.answer(stage.request(5, adapter=version(13)))).last.failure == "version_unusable"
        assert replica.tally.busy == {}


async def test_gateway_learns_from_the_first_token_and_from_the_end(bus: Bus) -> None:
    async with performing(bus) as stage:
        replica, offers = await stage.replica(goals=EASY), Offers()
        offers.update([PoolOffer.model_construct(name="tiny", serves=True, serving_sequences=4, ttft_ms=20_000.0)])
        sampler = Replicas(stage.client, offers, bus.clock.now_s, first_token_s=20.0)
        choice = Choice(Prompt(messages=QUESTION), ServedSampling(max_tokens=5, seed=7))
        answer = sampler.sample(choice, Target("tiny", "acme", "tiny", None), request="q0n0", key=None)
        assert [delta async for delta in answer][-1].finish == "length"
        places = stage.client._places["tiny"]
        assert (len(places._first_s), len(places._hold_s), places.in_flight) == (1, 1, 0)
        assert places._first_s[0] < places._hold_s[0]
        assert replica.tally.busy == {"goals_met": 1.0}


async def test_places_of_live_samplers_are_divided_between_gateways(bus: Bus) -> None:
    restarts, asked = Restarts(bus), PoolOffer.model_construct(name="tiny", serving_sequences=16)
    assert restarts.places(asked) == 16, "nothing is known yet"
    await restarts._look()
    assert restarts.places(asked) == 0
    for name, pool, serves in (("a", "tiny", True), ("b", "tiny", True), ("c", "tiny", False), ("d", "other", True)):
        await bus.kv.put(
            streams.REPLICAS_BUCKET, f"rollout.{name}", ReplicaReport(replica=name, service="rollout", pool=pool, serves=serves)
        )
    await restarts._look()
    assert restarts.places(asked) == 2 * 16
    for name in ("g0", "g1", "g2"):
        await bus.kv.put(streams.REPLICAS_BUCKET, f"gateway.{name}", ReplicaReport(replica=name, service="gateway"))
    await restarts._look()
    assert restarts.places(asked) == 11
    assert restarts.places(asked.model_copy(update={"serving_sequences": 1})) == 1, "each gateway has one"
