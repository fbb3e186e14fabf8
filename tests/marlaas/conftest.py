"""A scheduler with a test as environment, sampler and trainer, for tests of the SDK and of the command line."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from common.bus import Bus
from tests.marlaas.transports import address, transport
from tests.marlaas.verbs import Run
from tests.support.gateway.serving import patient
from tests.support.marlaas.command import Done, marlaas
from tests.support.scheduler.finished import is_slow, stages
from tests.support.scheduler.keyed_worlds import keyed, keyed_world
from tests.support.scheduler.stages import World, running_world

__all__ = ["address", "keyed", "keyed_world", "patient", "transport"]


@pytest.fixture
async def scheduler(bus: Bus, database_url: str, tmp_path: Path) -> AsyncGenerator[World]:
    """It works for as long as the test runs. Groups of tasks whose id begins with `slow` never end."""
    made = stages(bus, tmp_path / "made", withheld=is_slow)
    async with running_world(bus, database_url, made) as world:
        yield world


@pytest.fixture
def run(address: str, tmp_path: Path) -> Run:
    async def run(*arguments: str) -> Done:
        return await asyncio.to_thread(marlaas, *arguments, "--url", address, cwd=tmp_path)

    return run
