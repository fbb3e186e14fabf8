"""One engine that sleeps for all tests of parking, on a copy of the tiny model's folder, and the versions that it holds."""

import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from common.blobs import Blobs
from common.bus import Bus, Slots
from common.messages import AdapterRef
from common.task_states import TaskStates
from rollout_svc.accelerators.sampler import Sampler
from rollout_svc.adapters import Adapters
from rollout_svc.engine import config as engine_config
from rollout_svc.engine.config import EngineSettings
from rollout_svc.engine.engine import Engine, Sampled, SampleRequest
from rollout_svc.service import Rollout
from rollout_svc.text.chat import Chat
from tests.conftest import at_work, eventually
from tests.rollout.conftest import POOL, Oracle, published, sample_request
from tests.rollout.parking.faulty_worker import FaultyWorker

REQUESTS = 24


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(POOL.model, tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture(scope="session")
def with_faults() -> Iterator[None]:
    """Engines that start have a worker that can be damaged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_config, "SLEEPING_WORKER", f"{FaultyWorker.__module__}.{FaultyWorker.__qualname__}")
        yield


def sleeping_settings(model_folder: Path) -> EngineSettings:
    settings = EngineSettings.of(POOL, device="cpu", cores=(0,), sleeps=True)
    return replace(settings, model=str(model_folder), adapters=3, adapters_held=4, kv_cache_gib=0.125)


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def sleeper(model_folder: Path, with_faults: None) -> AsyncIterator[Engine]:
    engine = await Engine.start(sleeping_settings(model_folder))
    try:
        await engine.warm_up()
        yield engine
    finally:
        engine.process.close()


@pytest_asyncio.fixture(loop_scope="session")
async def held(sleeper: Engine, blobs: Blobs, tmp_path: Path) -> AsyncIterator[Adapters]:
    adapters = Adapters(sleeper, blobs, tmp_path / "adapters", keep=2, keep_s=60, tolerance=sleeper.canary_tolerance)
    async with at_work(adapters.run()):
        yield adapters
    for name in await sleeper.loaded():
        await sleeper.unload(name)


@pytest_asyncio.fixture(loop_scope="session")
async def sampler(sleeper: Engine, held: Adapters, chat: Chat, bus: Bus) -> AsyncIterator[Sampler]:
    """Awake before and after each test."""
    slots = Slots(64)
    sampler = Sampler(sleeper, held, Rollout(sleeper, chat, held, TaskStates(), slots, bus.clock.now_s), [slots])
    yield sampler
    await sampler.wake()


async def versions(blobs: Blobs, oracle: Oracle, *tasks: str) -> list[AdapterRef]:
    """A version of each task; all differ."""
    return [await published(blobs, oracle, task, 1, seed=300 + number) for number, task in enumerate(tasks)]


def long_requests(adapters: Sequence[str | None] = (None,)) -> list[SampleRequest]:
    """Requests that sample for half a second together, under these adapters in turn; made twice, they have the same tokens."""
    return [
        sample_request([1, 20, 30, 40 + number], seed=number, max_tokens=100, stop_ids=[], adapter=adapters[number % len(adapters)])
        for number in range(REQUESTS)
    ]


async def damage(engine: Engine, method: str) -> None:
    """Call this method of the worker, also of an engine that is stopped."""
    engine.process.proceed()
    await engine.process.worker(method)


async def progressed(engine: Engine, tokens: int) -> None:
    """Wait until the requests that are inside have so many more tokens."""
    goal = sum(engine.process.progress().values()) + tokens
    await eventually(lambda: sum(engine.process.progress().values()) >= goal)


def is_same(found: Sequence[Sampled], expected: Sequence[Sampled]) -> bool:
    """Whether tokens are equal, and log-probabilities within 1e-3."""
    return [one.ids for one in found] == [one.ids for one in expected] and all(
        abs(a - b) < 1e-3 for one, other in zip(found, expected, strict=True) for a, b in zip(one.logprobs, other.logprobs, strict=True)
    )
