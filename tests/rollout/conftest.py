"""One real engine for all tests of the sampler, and transformers with PEFT as the oracle of what it must answer.

The engine belongs to an event loop, so these tests share one.
"""

import inspect
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import llvmlite.binding  # noqa: F401  vLLM must start beside it: see rollout_svc/engine/cpu/platform.py
import pytest
import pytest_asyncio

from common.blobs import Blobs
from common.bus import Bus
from rollout_svc.adapters import Adapters
from rollout_svc.engine.config import EngineSettings
from rollout_svc.engine.engine import Engine
from rollout_svc.text.chat import Chat
from tests.rollout.engines import adapters_in, running_engine
from tests.rollout.oracle import Oracle
from tests.rollout.stage import Stage, performing
from tests.support.rollout.requests import POOL

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and inspect.iscoroutinefunction(getattr(item, "function", None)):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def engine() -> AsyncIterator[Engine]:
    """Takes three adapters into a batch and holds four, so that tests can ask for more."""
    settings = replace(EngineSettings.of(POOL, device="cpu", cores=(0,)), adapters=3, adapters_held=4)
    async with running_engine(settings) as engine:
        yield engine


@pytest.fixture(scope="session")
def chat() -> Chat:
    return Chat.load(POOL.model)


@pytest_asyncio.fixture(loop_scope="session")
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    async with await Bus.connect(nats_url, "test") as bus:
        await bus.declare()
        yield bus


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle(tmp_path_factory.mktemp("adapters"))


@pytest_asyncio.fixture(loop_scope="session")
async def blobs(bus: Bus) -> Blobs:
    return Blobs(bus)


@pytest_asyncio.fixture(loop_scope="session")
async def adapters(engine: Engine, blobs: Blobs, tmp_path: Path) -> AsyncIterator[Adapters]:
    """Keeps two versions behind the newest; leaves the engine as it found it."""
    async with adapters_in(engine, blobs, tmp_path / "adapters", keep_s=0) as adapters:
        yield adapters


@pytest_asyncio.fixture(loop_scope="session")
async def stage(bus: Bus, engine: Engine, chat: Chat, adapters: Adapters) -> AsyncIterator[Stage]:
    async with performing(bus, engine, chat, adapters) as stage:
        yield stage


@pytest.fixture
def endless(chat: Chat) -> Chat:
    """No token ends a turn: replies continue to their limit."""
    return Chat(chat._tokenizer, [])
