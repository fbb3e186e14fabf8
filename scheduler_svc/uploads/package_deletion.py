"""Cleans up packages: uploads that nobody completes, refused ones after a day, and deletions that were interrupted."""

from collections.abc import Awaitable, Callable
from functools import partial

from sqlalchemy.ext.asyncio import AsyncConnection

from common.blobs import Blobs
from common.bus import Bus
from scheduler_svc.base.database import Database
from scheduler_svc.base.states import PackageState
from scheduler_svc.uploads import package_queries as packages
from scheduler_svc.uploads.package_queries import Key
from scheduler_svc.uploads.packages import finish_deletion, give_up

UPLOADING_S = 3_600.0
"""Time after the last part of an upload, after which its parts are deleted."""
REFUSED_S = 86_400.0
"""Time after which a refused package is deleted; until then its reason can be read."""
ABANDONED = f"package: parts of it were missing for {UPLOADING_S / 60:.0f} minutes; send it again"


async def clean_packages(database: Database, bus: Bus, wake_relay: Callable[[], None]) -> None:
    """Raises: Retry when NATS or PostgreSQL is unavailable."""
    find = partial(packages.left_behind, uploading_s=UPLOADING_S, refused_s=REFUSED_S)
    if await _delete_found(database, bus, find, abandoned=ABANDONED):
        wake_relay()


async def delete_packages_of(database: Database, bus: Bus, tenant: str) -> None:
    """Delete all packages of a deleted tenant. Raises: Retry when a store is unavailable."""
    await _delete_found(database, bus, partial(packages.keys_of, tenant=tenant))


async def _delete_found(database: Database, bus: Bus, find: Callable[[AsyncConnection], Awaitable[list[Key]]], abandoned: str = "") -> bool:
    """Delete what `find` finds, and still finds once it is locked; whether there was any. `abandoned`: for those who wait for an upload."""
    blobs = Blobs(bus)
    async with database.transaction() as tx:
        found = await find(tx.connection)
    for key in found:
        async with database.transaction() as tx:
            package = await packages.lock(tx.connection, key)
            if package is not None and package.state != PackageState.DELETING and key in await find(tx.connection):
                await give_up(tx, package, reason=abandoned if package.state == PackageState.UPLOADING else "")
        async with database.transaction() as tx:
            await finish_deletion(tx, key, blobs)
    return bool(found)
