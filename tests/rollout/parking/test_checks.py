"""Wrong weights after a wake are found before anything is sampled with them, and the next wake may be right."""

import asyncio
import json
import shutil
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_DATA, prlimit

import pytest

from bench.harness.measures.memory import own_bytes
from common.accelerators import NoMemory, StateMismatch, Tier
from common.blobs import Blobs
from rollout_svc.accelerators.sampler import Sampler
from rollout_svc.adapters import Adapters
from rollout_svc.engine.engine import Engine
from tests.rollout.oracle import Oracle
from tests.rollout.parking.outside import engine_pid
from tests.rollout.parking.sleeping import damage, is_same, long_requests, progressed, versions
from tests.support.rollout.requests import sample_request

GONE = "the folder of model '{0}' of the pools file is gone: {0}; put it back, or correct `model` there and restart the pool's services"


@asynccontextmanager
async def frozen_requests(sampler: Sampler, engine: Engine, tier: Tier, adapters: tuple[str | None, ...] = (None,)) -> AsyncIterator[None]:
    """Requests that are frozen in the block, in which no wake may succeed: no token is sampled there, and after it all are right."""
    undisturbed = await asyncio.gather(*map(engine.sample, long_requests(adapters)))
    running = [asyncio.create_task(engine.sample(request)) for request in long_requests(adapters)]
    await progressed(engine, 400)
    await sampler.park(tier, 0)
    frozen = engine.process.progress()
    waiting = asyncio.create_task(engine.sample(sample_request()))
    yield
    assert engine.process.progress() == frozen
    assert not engine.gate.is_open and not waiting.done()
    await sampler.wake()
    assert is_same(await asyncio.gather(*running), undisturbed)
    assert (await waiting).ids


def with_wide_layer(weights: bytes) -> bytes:
    """The same file, in which one layer in the middle has its rows and columns exchanged."""
    begin = 8 + struct.unpack("<Q", weights[:8])[0]
    header = json.loads(weights[8:begin])
    header["model.layers.1.mlp.down_proj.weight"]["shape"].reverse()
    packed = json.dumps(header, separators=(",", ":")).encode()
    assert len(packed) <= begin - 8
    return weights[:8] + packed.ljust(begin - 8) + weights[begin:]


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.DISK])
async def test_lost_buffer_is_found(sampler: Sampler, sleeper: Engine, tier: Tier) -> None:
    async with frozen_requests(sampler, sleeper, tier):
        await damage(sleeper, "drop_buffer")
        with pytest.raises(StateMismatch, match=r"computes other log-probabilities than before it was parked: they differ by \d"):
            await sampler.wake()
        assert sampler.tier is Tier.DISK
        await damage(sleeper, "return_buffer")


async def test_other_weights_in_the_models_folder_are_found(sampler: Sampler, sleeper: Engine, model_folder: Path) -> None:
    (weights,) = model_folder.glob("*.safetensors")
    right = weights.read_bytes()
    begin = 8 + struct.unpack("<Q", right[:8])[0]
    pid = engine_pid(sleeper)
    async with frozen_requests(sampler, sleeper, Tier.DISK):
        middle = begin + (len(right) - begin) // 8 * 4
        try:
            weights.write_bytes(right[:begin] + right[middle:] + right[begin:middle])  # as many numbers, at other places
            for _ in range(2):
                with pytest.raises(StateMismatch, match="are its files those that the pool started with"):
                    await sampler.wake()
            weights.write_bytes(with_wide_layer(right))
            for _ in range(2):
                parked = own_bytes(pid)
                with pytest.raises(StateMismatch, match="did not wake from tier 'disk'"):
                    await sampler.wake()
            weights.unlink()
            with pytest.raises(StateMismatch, match="did not wake from tier 'disk'"):
                await sampler.wake()
            assert sampler.tier is Tier.DISK
            assert own_bytes(pid) - parked < 2**20
        finally:
            weights.write_bytes(right)


async def test_models_folder_that_is_gone_is_said_with_the_way_out(sampler: Sampler, sleeper: Engine, model_folder: Path) -> None:
    """vLLM takes what is no folder for the name of a repository, and says that it is a wrong one."""
    elsewhere = model_folder.with_name("elsewhere")
    async with frozen_requests(sampler, sleeper, Tier.DISK):
        model_folder.rename(elsewhere)
        try:
            with pytest.raises(StateMismatch) as caught:
                await sampler.wake()
        finally:
            elsewhere.rename(model_folder)
        assert str(caught.value) == GONE.format(model_folder)
        assert sampler.tier is Tier.DISK


async def test_wrong_adapter_in_a_slot_is_found(sampler: Sampler, sleeper: Engine, held: Adapters, blobs: Blobs, oracle: Oracle) -> None:
    refs = await versions(blobs, oracle, "slot-1", "slot-2", "slot-3")
    async with AsyncExitStack() as stack:
        names = [await stack.enter_async_context(held.using(ref)) for ref in refs]
        await stack.enter_async_context(frozen_requests(sampler, sleeper, Tier.DEVICE, tuple(names)))
        await damage(sleeper, "exchange_slots")
        await sampler.park(Tier.HOST, 0)
        with pytest.raises(StateMismatch, match=r"did not wake: engine and trainer disagree about version 1 of task slot-\d"):
            await sampler.wake()
        assert sampler.tier is Tier.DISK


async def test_other_files_in_an_adapters_folder_are_found_and_fetched_anew(
    sampler: Sampler, sleeper: Engine, held: Adapters, blobs: Blobs, oracle: Oracle, tmp_path: Path
) -> None:
    first, second = await versions(blobs, oracle, "folder-1", "folder-2")
    async with held.using(first) as one, held.using(second) as two, frozen_requests(sampler, sleeper, Tier.DISK, (None, one, two)):
        folders = [tmp_path / "adapters" / ref.engine_name for ref in (first, second)]
        shutil.copytree(folders[0], folders[1], dirs_exist_ok=True)
        with pytest.raises(StateMismatch, match="disagree about version 1 of task folder-2"):
            await sampler.wake()
        (folders[0] / "adapter_config.json").write_text("{")
        with pytest.raises(StateMismatch, match=r"folder-1.* did not wake: adapter folder-1.* cannot be loaded"):
            await sampler.wake()


async def test_adapter_that_nobody_uses_keeps_no_sampler_asleep(
    sampler: Sampler, sleeper: Engine, held: Adapters, blobs: Blobs, oracle: Oracle, tmp_path: Path
) -> None:
    used, *idle = await versions(blobs, oracle, "in-use", "idle-1", "idle-2")
    async with held.using(used) as name:
        for ref in idle:
            async with held.using(ref):
                pass
        await sampler.park(Tier.DISK, 0)
        (tmp_path / "adapters" / idle[0].engine_name / "adapter_config.json").write_text("{")
        await sampler.wake()
        assert await sleeper.loaded() == {name}, "the engine has dropped the others, and nothing waits for them"
        for ref in idle:
            async with held.using(ref):  # fetched, and checked, anew
                pass
    await sampler.park(Tier.DEVICE, 0)
    await damage(sleeper, "exchange_slots")
    await sampler.park(Tier.HOST, 0)
    await sampler.wake()
    assert await sleeper.loaded() == set()
    for ref in (used, *idle):
        async with held.using(ref):
            pass


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.DISK])
async def test_wake_without_memory_leaves_the_state_where_it_was(sampler: Sampler, sleeper: Engine, tier: Tier) -> None:
    pid = engine_pid(sleeper)
    async with frozen_requests(sampler, sleeper, tier):
        parked = own_bytes(pid)
        used = int(Path(f"/proc/{pid}/status").read_text().partition("VmData:")[2].split()[0]) * 1024
        before = prlimit(pid, RLIMIT_DATA, (used + 2**20, RLIM_INFINITY))
        try:
            for _ in range(2):
                with pytest.raises(NoMemory, match=r"no memory for .*(can't|Cannot) allocate memory"):
                    await sampler.wake()
            assert sampler.tier is tier
            assert own_bytes(pid) - parked < 8 * 2**20
        finally:
            prlimit(pid, RLIMIT_DATA, before)
