"""Streams of the jobs that tenants' keys send, one a tenant (ADR 43)."""

import json
from collections.abc import Collection
from contextlib import suppress

from nats.js.errors import NotFoundError

from common.bus.stored.declarations import Declarations
from common.bus.transport.connection import Connection, unavailable_as
from common.streams import JOBS, from_tenant, own_jobs, tenant_of


class OwnJobs:
    def __init__(self, connection: Connection, declarations: Declarations) -> None:
        self._connection = connection
        self._declarations = declarations

    async def declare(self, tenants: Collection[str], *, deleted: Collection[str] = ()) -> None:
        """Create the streams of `tenants` that are not there, and delete those of `deleted`. Raises: Unavailable; Undeclared."""
        there = set(await self.waiting())
        for tenant in sorted(set(tenants) - there):
            await self._declarations.add(own_jobs(tenant), like=JOBS)
        for tenant in sorted(there.intersection(deleted)):
            with unavailable_as(f"delete the stream of the jobs of '{tenant}'"), suppress(NotFoundError):
                await self._connection.js.delete_stream(own_jobs(tenant).name)

    async def waiting(self) -> dict[str, int]:
        """Tenants that have a stream, and how many jobs wait in each. Raises: Unavailable."""
        found, seen = dict[str, int](), 0
        with unavailable_as("list the streams of jobs"):
            while True:
                asked = json.dumps({"offset": seen, "subject": from_tenant("*", ">")}).encode()
                timeout_s = self._connection.timings.answer_timeout_s
                page = json.loads((await self._connection.client.request("$JS.API.STREAM.LIST", asked, timeout=timeout_s)).data)
                streams = page.get("streams") or []
                found |= {tenant_of(each["config"]["name"]): each["state"]["messages"] for each in streams}
                seen += len(streams)
                if not streams or seen >= page["total"]:
                    return found
