"""Tokens of accounts in NATS: told, forgotten and listed at run time, by a connection of the system account."""

import json
from typing import Any

from common.bus.transport.connection import Connection, unavailable_as
from common.errors import Reject

UPDATE, DELETE, LIST = "$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.CLAIMS.DELETE", "$SYS.REQ.CLAIMS.LIST"


class Accounts:
    """Each server of a cluster keeps all tokens; the answer is that of the first."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def push(self, token: str) -> None:
        """Make NATS take this token of an account in place of an older one; connections of revoked users end immediately.

        Raises: Reject when the server refuses it; Unavailable when it does not answer.
        """
        await self._request("tell NATS of an account", UPDATE, token)

    async def delete(self, token: str) -> None:
        """Make NATS forget the accounts that an operator's token names, and close their connections. Raises: as `push`."""
        await self._request("delete an account", DELETE, token)

    async def known(self) -> set[str]:
        """Public keys of all accounts that NATS has a token of. Raises: as `push`."""
        return set(await self._request("list the accounts", LIST, ""))

    async def token(self, account: str) -> str | None:
        """The token that NATS has of an account. Raises: Unavailable when it does not answer."""
        with unavailable_as("look at an account"):
            found = await self._ask(f"$SYS.REQ.ACCOUNT.{account}.CLAIMS.LOOKUP", "")
        return found.decode() or None

    async def _request(self, action: str, subject: str, body: str) -> Any:
        """`Any`: what the server answers is JSON."""
        with unavailable_as(action):
            answer = json.loads(await self._ask(subject, body))
        if "error" in answer:
            raise Reject(f"NATS refuses to {action}: {answer['error'].get('description', answer['error'])}")
        return answer.get("data")

    async def _ask(self, subject: str, body: str) -> bytes:
        return (await self._connection.client.request(subject, body.encode(), timeout=self._connection.timings.answer_timeout_s)).data
