from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from common.bus import Bus
from common.messages import GroupContext
from tests.gateway.dashboard.site import Keys, Site, fill, metrics, play, reward
from tests.gateway.serving import gateway
from tests.scheduler.finished import stages
from tests.scheduler.stages import World, running_world


def _is_slow(group: GroupContext, member: int) -> bool:
    return group.task.startswith("slow")


@pytest.fixture
async def world(bus: Bus, database_url: str, tmp_path: Path) -> AsyncGenerator[World]:
    made = stages(bus, tmp_path / "made", withheld=_is_slow, reward=reward, metrics=metrics)
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
