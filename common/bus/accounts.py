"""Tenants in NATS: pushes, deletes and lists tokens of accounts at run time over a connection of the system account; and the streams of
jobs that tenants' keys send, one per tenant (ADR 43).
"""

import json
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from nats.js.errors import NotFoundError

from common.bus.stored.declarations import Declarations
from common.bus.transport.connection import Connection, unavailable_as
from common.errors import Reject
from common.streams import JOBS, from_tenant, own_jobs, tenant_of

UPDATE, DELETE, LIST = "$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.CLAIMS.DELETE", "$SYS.REQ.CLAIMS.LIST"


class Accounts:
    """Tokens of accounts in NATS. Each server of a cluster keeps all tokens; the first server's answer counts."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def push(self, token: str) -> None:
        """Replace an account's token in NATS; connections of revoked users end immediately.

        Raises: Reject if the server refuses it; Unavailable if it does not answer.
        """
        await self._request("update an account", UPDATE, token)

    async def delete(self, token: str) -> None:
        """Delete the accounts that an operator's token names from NATS, and close their connections. Raises: as `push`."""
        await self._request("delete an account", DELETE, token)

    async def known(self) -> set[str]:
        """Public keys of all accounts whose token NATS has. Raises: as `push`."""
        return set(await self._request("list the accounts", LIST, ""))

    async def token(self, account: str) -> str | None:
        """The account's token in NATS; None if it has none. Raises: Unavailable if NATS does not answer."""
        with unavailable_as("look at an account"):
            found = await self._ask(f"$SYS.REQ.ACCOUNT.{account}.CLAIMS.LOOKUP", "")
        return found.decode() or None

    async def _request(self, action: str, subject: str, body: str) -> Any:
        """Send a request; returns the server's answer. `Any`: the answer is JSON."""
        with unavailable_as(action):
            answer = json.loads(await self._ask(subject, body))
        if "error" in answer:
            raise Reject(f"NATS refuses to {action}: {answer['error'].get('description', answer['error'])}")
        return answer.get("data")

    async def _ask(self, subject: str, body: str) -> bytes:
        return (await self._connection.client.request(subject, body.encode(), timeout=self._connection.timings.answer_timeout_s)).data


class OwnJobs:
    def __init__(self, connection: Connection, declarations: Declarations) -> None:
        self._connection = connection
        self._declarations = declarations

    async def declare(self, tenants: Collection[str], *, deleted: Collection[str] = ()) -> None:
        """Create missing streams of `tenants`, and delete those of `deleted`. Raises: Unavailable; Undeclared."""
        there = set(await self.waiting())
        for tenant in sorted(set(tenants) - there):
            await self._declarations.add(own_jobs(tenant), like=JOBS)
        for tenant in sorted(there.intersection(deleted)):
            with unavailable_as(f"delete the stream of the jobs of '{tenant}'"), suppress(NotFoundError):
                await self._connection.js.delete_stream(own_jobs(tenant).name)

    async def waiting(self) -> dict[str, int]:
        """Number of waiting jobs for each tenant that has a stream. Raises: Unavailable."""
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
