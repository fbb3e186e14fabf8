from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from common.bus import Bus
from tests.gateway.dashboard.site import Keys, Site, fill, metrics, play, reward
from tests.support.gateway.serving import gateway
from tests.support.scheduler.finished import is_slow, stages
from tests.support.scheduler.stages import World, running_world


@pytest.fixture
async def world(bus: Bus, database_url: str, tmp_path: Path) -> AsyncGenerator[World]:
    made = stages(bus, tmp_path / "made", withheld=is_slow, reward=reward, metrics=metrics)
    async with running_world(bus, database_url, made) as world:
        yield world


@pytest.fixture
async def site(world: World, nats_url: str) -> AsyncGenerator[Site]:
    """A gateway with keys."""
    keys = Keys(world.bus, nats_url)
    async with gateway(world.bus, nats_url, access=keys, session_secret="s" * 32) as address:
        yield Site(address, keys, world)


@pytest.fixture
async def played(site: Site) -> Site:
    """With four tasks of two tenants."""
    await play(site.world)
    return site


@pytest.fixture
async def long(site: Site) -> Site:
    """With a task of many steps."""
    await fill(site.world)
    return site
