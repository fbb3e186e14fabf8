"""Engines that end with their tests, and the adapters in them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from common.blobs import Blobs
from rollout_svc.adapters import Adapters
from rollout_svc.engine.config import EngineSettings
from rollout_svc.engine.engine import Engine
from tests.support.waiting import at_work


@asynccontextmanager
async def running_engine(settings: EngineSettings, *, warm: bool = False) -> AsyncIterator[Engine]:
    """The engine, until the block ends; `warm`: after its warm-up."""
    engine = await Engine.start(settings)
    try:
        if warm:
            await engine.warm_up()
        yield engine
    finally:
        engine.process.close()


@asynccontextmanager
async def adapters_in(engine: Engine, blobs: Blobs, folder: Path, *, keep_s: float) -> AsyncIterator[Adapters]:
    """Adapters that keep two versions behind the newest; the engine holds none after the block."""
    adapters = Adapters(engine, blobs, folder, keep=2, keep_s=keep_s, tolerance=engine.canary_tolerance)
    async with at_work(adapters.run()):
        yield adapters
    for name in await engine.loaded():
        await engine.unload(name)
