"""The client of OpenAI, before a real gateway, NATS and scheduler. A source of made-up tokens is in place of samplers."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from openai import AsyncOpenAI

from gateway_svc.access import Access
from tests.gateway.openai.clients import Opened, openai
from tests.support.gateway.deltas import Source
from tests.support.gateway.serving import gateway
from tests.support.scheduler.stages import World


@pytest.fixture
async def world(world: World) -> World:
    """With a tenant that has no task yet."""
    await world.execute("INSERT INTO tenants (id) VALUES ('acme')")
    return world


@pytest.fixture
def opened(world: World, nats_url: str) -> Opened:
    """A client of a gateway whose samplers are the source."""

    @asynccontextmanager
    async def open_(source: Source, *, tenant: str | None = "acme", access: Access | None = None) -> AsyncGenerator[AsyncOpenAI]:
        async with gateway(world.bus, nats_url, sampler=source, access=access) as address, openai(address, tenant=tenant) as client:
            yield client

    return open_
