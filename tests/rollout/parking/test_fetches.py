"""A sampler is parked and woken beside fetches of adapters; loads into the engine are waited for."""

import asyncio
import time
from pathlib import Path

import pytest

from common.accelerators import Tier
from common.blobs import Blobs
from common.bus import Bus
from common.messages import AdapterRef
from rollout_svc import adapters as module
from rollout_svc.accelerators.sampler import Sampler
from rollout_svc.adapters import Adapters, check_canary
from rollout_svc.engine.config import Tolerance
from rollout_svc.engine.engine import Engine
from rollout_svc.text.chat import Chat
from tests.rollout.oracle import Oracle
from tests.rollout.parking.parked_work import SlowBlobs, use
from tests.rollout.parking.sleeping import versions
from tests.rollout.stage import performing
from tests.support.waiting import eventually


class SlowToCheck(Adapters):
    """Loaded versions are checked when they may be."""

    def __init__(self, engine: Engine, blobs: Blobs, folder: Path) -> None:
        super().__init__(engine, blobs, folder, keep=2, keep_s=60, tolerance=engine.canary_tolerance)
        self.checking, self.may_check = asyncio.Event(), asyncio.Event()
        self.stopped_s = 0.0

    async def stop(self) -> None:
        await super().stop()
        self.stopped_s = time.monotonic()

    async def check(self, engine: Engine, ref: AdapterRef, tolerance: Tolerance) -> None:
        self.checking.set()
        await self.may_check.wait()
        await check_canary(engine, ref, tolerance)


async def test_fetch_in_progress_delays_neither_park_nor_wake(
    bus: Bus, sleeper: Engine, chat: Chat, blobs: Blobs, oracle: Oracle, tmp_path: Path
) -> None:
    slow = SlowBlobs(bus)
    adapters = Adapters(sleeper, slow, tmp_path / "hanging", keep=2, keep_s=60, tolerance=sleeper.canary_tolerance)
    used, late = await versions(blobs, oracle, "hanging-used", "hanging-late")
    async with performing(bus, sleeper, chat, adapters) as stage:
        sampler = Sampler(sleeper, adapters, stage.rollout, [stage.slots])
        slow.may_come.set()
        async with adapters.using(used):
            slow.may_come.clear()
            loading = asyncio.create_task(adapters.load_ahead(late))
            await eventually(lambda: slow.asked == 2)
            async with asyncio.timeout(60):
                await sampler.park(Tier.DISK, 0)
                await sampler.wake()  # which loads the one in use
            assert not loading.done() and not adapters.is_loaded(late)
            slow.may_come.set()
            await loading
            assert await sleeper.loaded() == {used.engine_name, late.engine_name}
    for ref in (used, late):
        await sleeper.unload(ref.engine_name)


async def test_seconds_of_a_park_begin_when_loads_in_progress_have_ended(
    bus: Bus, sleeper: Engine, chat: Chat, blobs: Blobs, oracle: Oracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters = SlowToCheck(sleeper, blobs, tmp_path / "checked")
    monkeypatch.setattr(module, "check_canary", adapters.check)
    (ref,) = await versions(blobs, oracle, "checked")
    async with performing(bus, sleeper, chat, adapters) as stage:
        sampler = Sampler(sleeper, adapters, stage.rollout, [stage.slots])
        loading = asyncio.create_task(use(adapters, ref))
        await adapters.checking.wait()
        asyncio.get_running_loop().call_later(0.5, adapters.may_check.set)
        move_s = await sampler.park(Tier.DEVICE, 0)
        assert move_s <= time.monotonic() - adapters.stopped_s
        await loading
        await sampler.wake()
    await sleeper.unload(ref.engine_name)
