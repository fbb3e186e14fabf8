"""A server that wants keys, with the accounts of two tenants."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.keyed import Keyed, keyed_server


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[Keyed]:
    async with keyed_server(tmp_path) as server:
        yield server
