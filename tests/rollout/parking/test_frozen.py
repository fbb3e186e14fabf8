"""Requests that are frozen in the middle: their tokens are those of an undisturbed run."""

import asyncio

import pytest

from common.accelerators import Function, Tier
from common.blobs import Blobs
from rollout_svc.accelerators.sampler import Sampler
from rollout_svc.adapters import Adapters
from rollout_svc.engine.engine import Engine
from tests.rollout.oracle import Oracle
from tests.rollout.parking.sleeping import REQUESTS, is_same, long_requests, progressed, versions
from tests.support.rollout.requests import sample_request
from tests.support.waiting import eventually


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("tier", [Tier.DEVICE, Tier.HOST, Tier.DISK])
async def test_frozen_requests_get_the_tokens_of_an_undisturbed_run(
    sampler: Sampler, sleeper: Engine, held: Adapters, blobs: Blobs, oracle: Oracle, tier: Tier, times: int
) -> None:
    first, second = await versions(blobs, oracle, f"frozen-{tier}-{times}", f"other-{tier}-{times}")
    async with held.using(first) as one, held.using(second) as other:
        adapters = (None, one, other)
        undisturbed = await asyncio.gather(*map(sleeper.sample, long_requests(adapters)))
        running = [asyncio.create_task(sleeper.sample(request)) for request in long_requests(adapters)]
        for _ in range(times):
            await progressed(sleeper, 400)
            await sampler.park(tier, 0)
            assert sampler.load.begun == REQUESTS
            await sampler.wake()
        assert is_same(await asyncio.gather(*running), undisturbed)


async def test_requests_that_come_while_parked_wait_and_those_that_are_aborted_end(sampler: Sampler, sleeper: Engine) -> None:
    frozen = sample_request(max_tokens=200, stop_ids=[])
    sampling = asyncio.create_task(sleeper.sample(frozen))
    await progressed(sleeper, 8)
    await sampler.park(Tier.HOST, 0)
    assert sampler.load.running is None
    late, doomed = sample_request(), sample_request()
    waiting, dying = asyncio.create_task(sleeper.sample(late)), asyncio.create_task(sleeper.sample(doomed))
    await asyncio.sleep(0)
    await sleeper.abort([frozen.request_id, doomed.request_id])
    assert (await sampling).finish == "aborted"
    assert sampler.load.begun == 1, "it wakes for the one that waits, and not for those that were aborted"
    assert not waiting.done()
    await sampler.wake()
    assert (await dying).finish == "aborted"
    assert (await waiting).ids


async def test_frozen_requests_are_not_waited_for_on_the_way_to_a_deeper_tier(sampler: Sampler, sleeper: Engine) -> None:
    """An operator drains a pool that is parked."""
    request = sample_request(max_tokens=200, stop_ids=[])
    undisturbed = await sleeper.sample(request)
    sampling = asyncio.create_task(sleeper.sample(sample_request(max_tokens=200, stop_ids=[])))
    await progressed(sleeper, 8)
    await sampler.park(Tier.HOST, 0)
    async with asyncio.timeout(60):
        await sampler.park(Tier.DISK, None)
    assert (sampler.tier, sampler.load.begun) == (Tier.DISK, 1)
    await sampler.wake()
    assert is_same([await sampling], [undisturbed])


async def test_load_and_tokens_are_reported_also_of_requests_that_have_not_ended(sampler: Sampler, sleeper: Engine) -> None:
    sampler.taken()
    running = [asyncio.create_task(sleeper.sample(sample_request(max_tokens=200, stop_ids=[], task=task))) for task in ("a", "b")]
    await eventually(lambda: min(sleeper.process.progress().values(), default=0) > 20)
    assert sampler.load.running is Function.GENERATE
    await sampler.park(Tier.HOST, 0)
    begun = sampler.taken()
    assert begun.by_task.keys() == {"a", "b"} and min(begun.by_task.values()) > 20
    assert 0 < begun.busy_s < 60 and begun.pieces == 0
    assert sampler.taken().by_task == {} and sampler.taken().busy_s == 0
    await sampler.wake()
    await asyncio.gather(*running)
    rest = sampler.taken()
    assert {task: begun.by_task[task] + rest.by_task[task] for task in "ab"} == {"a": 200, "b": 200}
    assert rest.pieces == 2
