"""A sandbox of each kind, started."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from env_svc.sandboxes.sandbox import Sandbox
from tests.support.env.sandboxes import KINDS, sandbox_of


@pytest.fixture(params=KINDS)
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    sandbox = sandbox_of(request.param)
    await sandbox.start()
    try:
        yield sandbox
    finally:
        async with asyncio.timeout(250):  # whatever ran: no run holds up its container's removal
            await sandbox.close()
