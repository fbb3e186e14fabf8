"""A scheduler with a test as environment, sampler and trainer, and a gateway before it."""

from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest

from common.bus import Bus
from tests.support.gateway.serving import client, gateway, patient
from tests.support.scheduler.finished import is_slow, stages
from tests.support.scheduler.keyed_worlds import keyed, keyed_world
from tests.support.scheduler.stages import World, running_world

__all__ = ["keyed", "keyed_world", "patient"]


@pytest.fixture
async def world(bus: Bus, database_url: str, tmp_path: Path) -> AsyncGenerator[World]:
    """Groups of tasks whose id begins with `slow` never end."""
    async with running_world(bus, database_url, stages(bus, tmp_path / "made", withheld=is_slow)) as world:
        yield world


@pytest.fixture
async def door(world: World, nats_url: str) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of a gateway on a server without keys."""
    async with gateway(world.bus, nats_url) as address, client(address) as found:
        yield found


@pytest.fixture
async def wrong(bus: Bus, nats_url: str) -> AsyncGenerator[httpx.AsyncClient]:
    """Of a gateway without a scheduler."""
    async with gateway(bus, nats_url, until_ready=False) as address, client(address) as found:
        yield found
