"""The desk that the tests of this folder share."""

from collections.abc import AsyncIterator

import pytest

from common.bus import Bus
from env_svc.execution.workers import Workers
from tests.env.service.desk import Desk, at_desk, service_of, serving


@pytest.fixture
async def desk(bus: Bus, workers: Workers) -> AsyncIterator[Desk]:
    service = service_of(workers, call_timeout_s=60.0)
    async with serving(bus, service), at_desk(bus) as desk:
        yield desk
