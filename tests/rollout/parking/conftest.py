"""One engine that sleeps for all tests of parking, on a copy of the tiny model's folder, and the versions that it holds."""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from common.blobs import Blobs
from common.bus import Bus, Slots
from common.task_states import TaskStates
from rollout_svc.accelerators.sampler import Sampler
from rollout_svc.adapters import Adapters
from rollout_svc.engine import config as engine_config
from rollout_svc.engine.engine import Engine
from rollout_svc.service import Rollout
from rollout_svc.text.chat import Chat
from tests.rollout.engines import adapters_in, running_engine
from tests.rollout.parking.faulty_worker import BEAT_S, FaultyWorker
from tests.rollout.parking.sleeping import sleeping_settings
from tests.support.rollout.requests import POOL
from tests.support.waiting import at_work, eventually


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(POOL.model, tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture(scope="session")
def with_faults() -> Iterator[None]:
    """Engines that start have a worker that can be damaged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_config, "SLEEPING_WORKER", f"{FaultyWorker.__module__}.{FaultyWorker.__qualname__}")
        yield


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def sleeper(model_folder: Path, with_faults: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    beats = tmp_path_factory.mktemp("beats") / "at"
    async with running_engine(sleeping_settings(model_folder), warm=True) as engine, at_work(_beat(beats)):
        await eventually(beats.exists)
        await engine.process.worker("follow", path=str(beats))
        yield engine


async def _beat(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            os.pwrite(file.fileno(), f"{time.monotonic():032.6f}".encode(), 0)
            await asyncio.sleep(BEAT_S)


@pytest_asyncio.fixture(loop_scope="session")
async def held(sleeper: Engine, blobs: Blobs, tmp_path: Path) -> AsyncIterator[Adapters]:
    async with adapters_in(sleeper, blobs, tmp_path / "adapters", keep_s=60) as adapters:
        yield adapters


@pytest_asyncio.fixture(loop_scope="session")
async def sampler(sleeper: Engine, held: Adapters, chat: Chat, bus: Bus) -> AsyncIterator[Sampler]:
    """Awake before and after each test."""
    slots = Slots(64)
    sampler = Sampler(sleeper, held, Rollout(sleeper, chat, held, TaskStates(), slots, bus.clock.now_s), [slots])
    yield sampler
    await sampler.wake()
