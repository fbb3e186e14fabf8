"""Rows of a PostgreSQL that may be stopped or killed meanwhile."""

import asyncio
from contextlib import suppress
from typing import Any

import psycopg

AGAIN_S = 0.05
ANSWER_S = 10.0
"""Maximum time of one question."""


class Rows:
    """One connection, opened again after it is lost: a question each 50 ms would otherwise cost a third of a core."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.AsyncConnection[tuple[Any, ...]] | None = None
        self._asking = asyncio.Lock()

    async def ask(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Repeated until PostgreSQL answers."""
        while True:
            with suppress(psycopg.OperationalError, psycopg.InterfaceError, TimeoutError):
                async with self._asking, asyncio.timeout(ANSWER_S):
                    return await self._ask(query, values)
            await asyncio.sleep(AGAIN_S)

    async def _ask(self, query: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        connection, self._connection = self._connection, None
        if connection is None:
            connection = await psycopg.AsyncConnection.connect(self._url, autocommit=True)
        try:
            found = await (await connection.execute(query.encode(), values)).fetchall()
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        return found

    async def aclose(self) -> None:
        if self._connection is not None:
            await self._connection.close()
