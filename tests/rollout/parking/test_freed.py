"""Bytes that a parked engine gives back, read from outside of it, and what many moves leave behind."""

import asyncio
import threading
from pathlib import Path

import pytest

from bench.harness.measures.memory import own_bytes
from common.accelerators import Tier
from rollout_svc.accelerators.sampler import Sampler
from rollout_svc.accelerators.tiers import Parking
from rollout_svc.engine import config as engine_config
from rollout_svc.engine.config import EngineSettings
from rollout_svc.engine.engine import Engine
from rollout_svc.engine.process import EngineProcess
from tests.rollout.parking.outside import children, engine_pid, failure_files, is_stopped, processor_s
from tests.rollout.parking.sleeping import no_adapters, sleeping_settings
from tests.support.rollout.requests import POOL, sample_request
from tests.support.waiting import eventually

MIB = 2**20
MOVES = (Tier.HOST, Tier.DISK)


async def freed_share(parking: Parking, engine: Engine, tier: Tier) -> float:
    """Private bytes that a park to `tier` gives back, as a share of what the engine needs on its device."""
    before = own_bytes(engine_pid(engine))
    await parking.park(tier)
    return (before - own_bytes(engine_pid(engine))) / parking.device_bytes


@pytest.mark.parametrize("tier", MOVES)
async def test_parked_engine_has_given_back_its_weights_and_cache(sampler: Sampler, sleeper: Engine, tier: Tier) -> None:
    await sampler._parking.learn()  # its memory for the first long prompt stays
    await sleeper.process.worker("fill_cache")
    assert sampler.device_bytes > 0.125 * 2**30
    assert await freed_share(sampler._parking, sleeper, tier) >= 0.97  # also without the cache, the weights and slots are 5 %
    assert sampler.tier is tier
    assert 0 < sampler.host_bytes < 32 * MIB


@pytest.mark.slow
@pytest.mark.parametrize("tier", MOVES)
async def test_stock_worker_gives_nothing_back(monkeypatch: pytest.MonkeyPatch, tier: Tier) -> None:
    """What the test above would not show without being read from outside."""
    monkeypatch.setattr(engine_config, "SLEEPING_WORKER", "vllm.v1.worker.cpu_worker.CPUWorker")
    engine = await Engine.start(EngineSettings.of(POOL, device="cpu", cores=(0,), sleeps=True))
    try:
        assert await freed_share(Parking(engine), engine, tier) < 0.01
    finally:
        engine.process.close()


async def test_weights_that_were_read_again_are_there_once(sampler: Sampler, sleeper: Engine) -> None:
    await sampler.park(Tier.DISK, 0)
    await sampler.wake()
    assert await sleeper.process.worker("copied_weights") == 0


async def test_paused_engine_keeps_what_it_has(sampler: Sampler, sleeper: Engine) -> None:
    await sleeper.process.worker("fill_cache")
    assert abs(await freed_share(sampler._parking, sleeper, Tier.DEVICE)) < 0.05
    assert sampler.tier is Tier.DEVICE


async def test_state_that_sleeps_goes_deeper_and_never_nearer_without_a_wake(sampler: Sampler, sleeper: Engine) -> None:
    pid = engine_pid(sleeper)
    reached: list[Tier] = []
    for tier in (Tier.DEVICE, Tier.HOST, Tier.DEVICE, Tier.DISK, Tier.HOST):
        await sampler.park(tier, 0)
        reached.append(sampler.tier)
    assert reached == [Tier.DEVICE, Tier.HOST, Tier.HOST, Tier.DISK, Tier.DISK]
    await sampler.wake()
    assert (await sleeper.sample(sample_request())).ids
    assert engine_pid(sleeper) == pid


async def test_parked_engine_uses_no_processor(sampler: Sampler, sleeper: Engine) -> None:
    await sampler.park(Tier.HOST, 0)
    pid, window_s = engine_pid(sleeper), 1.0
    await eventually(lambda: is_stopped(pid))
    before = processor_s(pid)
    await asyncio.sleep(window_s)
    assert processor_s(pid) == before


async def test_moves_leave_no_memory_behind(sampler: Sampler, sleeper: Engine) -> None:
    pid = engine_pid(sleeper)
    parked: list[int] = []
    for number in range(22):
        await sleeper.sample(sample_request())
        await sampler.park(MOVES[number % 2], 0)
        parked.append(own_bytes(pid))
        await sampler.wake()
    assert max(parked[-2:]) - max(parked[:2]) <= 16 * MIB


@pytest.mark.slow
async def test_engine_that_is_closed_and_opened_leaves_no_process_no_thread_and_no_file() -> None:
    """The first start of a closed engine is a wake."""
    settings = sleeping_settings(Path(POOL.model))
    before = children()
    engine = Engine(EngineProcess(settings))
    parking = Parking(engine)
    assert parking.tier is Tier.NONE
    assert 0.9 < parking.device_bytes / (settings.kv_cache_gib * 2**30) < 1.1
    request = sample_request(stop_ids=[])
    waiting = asyncio.create_task(engine.sample(request))
    await parking.wake(no_adapters)
    first = await waiting
    assert engine.is_invariant
    try:
        threads, files = list[int](), list[int]()
        for _ in range(3):
            await parking.park(Tier.NONE)
            assert parking.tier is Tier.NONE
            assert children() <= before  # one of them may be an engine of another test that ends
            await parking.wake(no_adapters)
            threads.append(threading.active_count())
            files.append(failure_files())
            assert await engine.sample(request) == first
            assert len(children() - before) == 1
        assert threads[0] == threads[-1] and files[0] == files[-1] > 0
    finally:
        engine.process.close()


async def test_engine_with_requests_inside_is_not_closed(sampler: Sampler, sleeper: Engine) -> None:
    sampling = asyncio.create_task(sleeper.sample(sample_request(max_tokens=200, stop_ids=[])))
    await asyncio.sleep(0)
    assert sleeper.work.inside == 1
    await sampler.park(Tier.NONE, 0)
    assert sampler.tier is Tier.DISK
    await sampler.wake()
    assert len((await sampling).ids) == 200
