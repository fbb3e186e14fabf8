"""Connections of a key without the bus, which note what the server refuses."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from nats.aio.client import Client

from common.access.credentials import read_credentials
from tests.support.keyed import Keyed

VIOLATION = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"', re.IGNORECASE)


@asynccontextmanager
async def raw(server: Keyed, creds: Path, refused: set[tuple[str, str]]) -> AsyncIterator[Client]:
    async def on_error(error: Exception) -> None:
        if found := VIOLATION.search(str(error)):
            refused.add((found[1].lower(), found[2].lower()))

    client = Client()
    await client.connect(server.url, user_credentials=str(creds), error_cb=on_error, inbox_prefix=read_credentials(creds).inbox)
    try:
        yield client
    finally:
        await client.close()
