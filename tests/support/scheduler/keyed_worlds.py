"""A scheduler on a server that wants keys; a test is its environment, sampler and trainer."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from common.bus import Bus
from tests.support.buses import HASTY
from tests.support.keyed import Keyed, keyed_server
from tests.support.scheduler.finished import is_slow, stages
from tests.support.scheduler.stages import World, running_world


@pytest.fixture
async def keyed(nats_folder: Path) -> AsyncGenerator[Keyed]:
    """A server that wants keys, with the accounts of two tenants."""
    async with keyed_server(nats_folder) as server:
        yield server


@pytest.fixture
async def keyed_world(keyed: Keyed, database_url: str, tmp_path: Path) -> AsyncGenerator[World]:
    """As `scheduler`, on that server."""
    async with (
        await Bus.connect(keyed.url, "stages", creds=keyed.stages_key(), timings=HASTY) as bus,
        running_world(bus, database_url, stages(bus, tmp_path / "made", withheld=is_slow)) as world,
    ):
        yield world
