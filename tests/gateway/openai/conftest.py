"""The client of OpenAI, before a real gateway, NATS and scheduler. A source of made-up tokens is in place of samplers."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from openai import AsyncOpenAI
from sqlalchemy import text

from gateway_svc.access import Access
from tests.gateway.openai.deltas import Source
from tests.gateway.serving import gateway
from tests.scheduler.stages import World

Opened = Callable[..., AbstractAsyncContextManager[AsyncOpenAI]]


def openai(address: str, *, tenant: str | None = "acme") -> AsyncOpenAI:
    query = {} if tenant is None else {"tenant": tenant}
    return AsyncOpenAI(base_url=f"{address}/v1", api_key="mk-none", default_query=query, max_retries=0, timeout=60)


@pytest.fixture
async def world(world: World) -> World:
    """With a tenant that has no task yet."""
    async with world.database.transaction() as tx:
        await tx.connection.execute(text("INSERT INTO tenants (id) VALUES ('acme')"))
    return world


@pytest.fixture
def opened(world: World, nats_url: str) -> Opened:
    """A client of a gateway whose samplers are the source."""

    @asynccontextmanager
    async def open_(source: Source, *, tenant: str | None = "acme", access: Access | None = None) -> AsyncGenerator[AsyncOpenAI]:
        async with gateway(world.bus, nats_url, sampler=source, access=access) as address, openai(address, tenant=tenant) as client:
            yield client

    return open_
