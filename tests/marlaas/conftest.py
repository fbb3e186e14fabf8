"""A scheduler with a test as environment, sampler and trainer, for tests of the SDK and of the command line."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from pydantic import JsonValue

from common.bus import Bus
from tests.scheduler.finished import stages
from tests.scheduler.stages import World, running_world

STEPS = 3
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


@pytest.fixture
async def scheduler(bus: Bus, database_url: str, tmp_path: Path) -> AsyncGenerator[World]:
    """It works for as long as the test runs. Groups of tasks whose id begins with `slow` never end."""
    made = stages(bus, tmp_path / "made", withheld=lambda group, member: group.task.startswith("slow"))
    async with running_world(bus, database_url, made) as world:
        yield world
