"""The address of each way in: a test that takes `address` runs over NATS, and over HTTP through a gateway of its own."""

from collections.abc import AsyncGenerator
from typing import Literal

import pytest

from common.bus import Bus
from tests.support.gateway.serving import gateway

Transport = Literal["nats", "http"]


@pytest.fixture(params=["nats", "http"])
def transport(request: pytest.FixtureRequest) -> Transport:
    return request.param


@pytest.fixture
async def address(transport: Transport, nats_url: str, bus: Bus) -> AsyncGenerator[str]:
    if transport == "nats":
        yield nats_url
        return
    async with gateway(bus, nats_url, until_ready=False) as url:
        yield url
