"""A replica that plays packages of tenants."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common.bus import Bus
from env_svc.execution.workers import Workers
from env_svc.hosted.confinement import Confinement
from tests.env.packages.making import Stage, staged


@pytest.fixture
async def stage(bus: Bus, workers: Workers, sandbox: Confinement, python: str, tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(bus, workers, sandbox, python, tmp_path / "packages") as stage:
        yield stage
