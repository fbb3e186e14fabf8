"""Room in the bucket of HTTP keys: entries of keys that ended, and the markers that revoked ones leave, are removed after a while."""

from common.bus import Bus
from common.streams import HTTP_KEYS_BUCKET
from scheduler_svc.base.database import Database
from scheduler_svc.tenancy import keys


async def remove_over(database: Database, bus: Bus) -> int:
    """How many were removed. Raises: Retry when PostgreSQL or NATS is unavailable."""
    stored = await bus.kv.keys(HTTP_KEYS_BUCKET)
    if not stored:
        return 0
    async with database.statements() as connection:  # later, so that it has every key that is stored
        wanted = {each.value.digest for each in await keys.http_keys(connection) if not each.is_over}
    await bus.kv.remove(HTTP_KEYS_BUCKET, stored - wanted)
    return len(stored - wanted)
