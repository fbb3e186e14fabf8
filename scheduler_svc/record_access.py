"""`python -m scheduler_svc.record_access`: record accounts and keys while no scheduler runs, for `marlaas containers accounts`.

Input: one `SetAccess` in JSON per line, or nothing. Output: all recorded access, one `TenantAccess` in JSON per line, the operators' first.
"""

import asyncio
import sys
from collections.abc import Sequence

from common.errors import Reject
from common.messages import SetAccess, TenantAccess
from common.runtime.settings import read_or_exit
from scheduler_svc.base.database import Database
from scheduler_svc.settings import SchedulerSettings
from scheduler_svc.tenancy import keys
from scheduler_svc.tenancy.keys import set_access

ALL = 2**31 - 1


async def record_access(database: Database, requests: Sequence[SetAccess]) -> list[TenantAccess]:
    """Record all requests or none; returns the access of all tenants. Raises: Reject with the reason."""
    async with database.transaction() as tx:
        for request in requests:
            await set_access(tx, request)
        return await keys.accesses(tx.connection, None, after=None, most=ALL)


async def _main(url: str, requests: Sequence[SetAccess]) -> list[TenantAccess]:
    database = await Database.connect(url)
    try:
        return await record_access(database, requests)
    finally:
        await database.close()


def main() -> None:
    settings = read_or_exit(SchedulerSettings)
    assert isinstance(settings, SchedulerSettings)
    try:
        requests = [SetAccess.decode(line.encode()) for line in sys.stdin if line.strip()]
        found = asyncio.run(_main(settings.database_url, requests))
    except Reject as error:
        sys.exit(f"record_access: {error}")
    sys.stdout.write("".join(f"{one.model_dump_json()}\n" for one in found))


if __name__ == "__main__":
    main()
