"""Worker processes that the tests of this folder share: starting them imports reasoning-gym."""

import asyncio
from collections.abc import Iterator

import pytest

from env_svc.execution.workers import Workers

FAMILIES = ["reasoning_gym", "module"]
WORKER_MEMORY_BYTES = 2 * 2**30


@pytest.fixture(scope="session")
def workers() -> Iterator[Workers]:
    workers = Workers(2, FAMILIES, WORKER_MEMORY_BYTES)
    asyncio.run(workers.start())
    yield workers
    asyncio.run(workers.stop())
