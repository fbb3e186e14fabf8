"""Cleans up packages: uploads that nobody completes, refused ones after a day, and deletions that were interrupted."""

from collections.abc import Callable

from common.blobs import Blobs
from common.bus import Bus
from scheduler_svc.lifecycle.packages import finish_deletion, give_up
from scheduler_svc.store.database import Database
from scheduler_svc.store.queries import packages
from scheduler_svc.store.states import PackageState

UPLOADING_S = 3_600.0
"""Time after the last part of an upload, after which its parts are deleted."""
REFUSED_S = 86_400.0
"""Time after which a refused package is deleted; until then its reason can be read."""
ABANDONED = f"package: parts of it were missing for {UPLOADING_S / 60:.0f} minutes; send it again"


async def clean_packages(
    database: Database, bus: Bus, wake_relay: Callable[[], None], *, uploading_s: float = UPLOADING_S, refused_s: float = REFUSED_S
) -> None:
    """Raises: Retry when NATS or PostgreSQL is unavailable."""
    blobs = Blobs(bus)
    async with database.transaction() as tx:
        found = await packages.left_behind(tx.connection, uploading_s=uploading_s, refused_s=refused_s)
    for key in found:
        async with database.transaction() as tx:
            package = await packages.lock(tx.connection, key)
            still = key in await packages.left_behind(tx.connection, uploading_s=uploading_s, refused_s=refused_s)
            if package is not None and still and package.state != PackageState.DELETING:
                await give_up(tx, package, reason=ABANDONED if package.state == PackageState.UPLOADING else "")
        async with database.transaction() as tx:
            await finish_deletion(tx, key, blobs)
    if found:
        wake_relay()


async def delete_packages_of(database: Database, bus: Bus, tenant: str) -> None:
    """Delete all packages of a deleted tenant. Raises: Retry when a store is unavailable."""
    blobs = Blobs(bus)
    async with database.transaction() as tx:
        digests = await packages.digests_of(tx.connection, tenant)
    for digest in digests:
        async with database.transaction() as tx:
            if (package := await packages.lock(tx.connection, (tenant, digest))) is not None:
                await give_up(tx, package)
        async with database.transaction() as tx:
            await finish_deletion(tx, (tenant, digest), blobs)
