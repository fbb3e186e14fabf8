"""A database behind a proxy that can fall silent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from marlaas.stack import servers
from scheduler_svc.base.database import Database
from tests.support.proxy import Wire


@asynccontextmanager
async def database_behind_wire(database_url: str, *, patience_s: float) -> AsyncIterator[tuple[Database, Wire]]:
    address, _, name = database_url.rpartition("/")
    async with Wire("silent", int(address.rpartition(":")[2])).listening() as wire:
        database = await Database.connect(servers.database_url(wire.port, name), patience_s=patience_s, cancel_s=0.5)
        yield database, wire
        await database.close()
