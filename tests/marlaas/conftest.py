"""A scheduler with a test as environment, sampler and trainer, for tests of the SDK and of the command line."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from pydantic import JsonValue

from common.bus import Bus
from common.messages import GroupContext
from tests.common.access.keyed import Keyed, keyed_server
from tests.conftest import HASTY
from tests.marlaas.transports import address, transport
from tests.scheduler.finished import stages
from tests.scheduler.stages import World, running_world

__all__ = ["address", "transport"]

STEPS = 3
ASKED: dict[str, JsonValue] = {
    "asked": {"environment": "toy", "options": "", "weights": "", "seed": 0, "temperature": 1.0},
    "by_prompt": "",
}
"""What each evaluation's event has besides its numbers."""
SPEC: dict[str, JsonValue] = {
    "name": "gcd",
    "tenant": "acme",
    "pool": "tiny",
    "steps": STEPS,
    "environment": {"name": "toy"},
    "algorithm": {"group_size": 2, "groups_per_step": 2, "max_staleness": 1},
    "keep": {"adapters": "all"},
}


def step_data(version: int) -> dict[str, JsonValue]:
    return {
        "version": version,
        "reward": version / 10,
        "staleness_mean": 0.5,
        "staleness_max": 1,
        "sampled_tokens": 100,
        "groups": 2,
        "metrics": {"loss": 0.25},
        "times": {"first_sampled_s": version * 10.0, "batched_s": version * 10.0 + 5, "trained_s": version * 10.0 + 7},
    }


def _is_slow(group: GroupContext, member: int) -> bool:
    return group.task.startswith("slow")


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncGenerator[Keyed]:
    """A server that wants keys, with the accounts of two tenants."""
    async with keyed_server(tmp_path) as server:
        yield server


@pytest.fixture
async def keyed_world(keyed: Keyed, database_url: str, tmp_path: Path) -> AsyncGenerator[World]:
    """As `scheduler`, on that server."""
    async with (
        await Bus.connect(keyed.url, "stages", creds=keyed.stages_key(), timings=HASTY) as bus,
        running_world(bus, database_url, stages(bus, tmp_path / "made", withheld=_is_slow)) as world,
    ):
        yield world


@pytest.fixture
async def scheduler(bus: Bus, database_url: str, tmp_path: Path) -> AsyncGenerator[World]:
    """It works for as long as the test runs. Groups of tasks whose id begins with `slow` never end."""
    made = stages(bus, tmp_path / "made", withheld=_is_slow)
    async with running_world(bus, database_url, made) as world:
        yield world
