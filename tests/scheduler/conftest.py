"""A connected database for tests that run no scheduler."""

from collections.abc import AsyncIterator

import pytest

from scheduler_svc.base.database import Database


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with await Database.connect(database_url) as database:
        yield database
