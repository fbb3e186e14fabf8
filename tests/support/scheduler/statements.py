"""SQL that a test runs beside the services, each call in a transaction of its own."""

from typing import Any

from sqlalchemy import text

from scheduler_svc.base.database import Database
from tests.support.waiting import eventually


async def execute(database: Database, *statements: str) -> None:
    async with database.transaction() as tx:
        for statement in statements:
            await tx.connection.execute(text(statement))


async def select(database: Database, query: str) -> list[Any]:
    """Rows of the answer, which equal tuples."""
    async with database.transaction() as tx:
        return list((await tx.connection.execute(text(query))).all())


class Queried:
    """A world with a database that its tests read, and change behind the services' back."""

    database: Database

    async def execute(self, *statements: str) -> None:
        await execute(self.database, *statements)

    async def rows(self, query: str) -> list[Any]:
        return await select(self.database, query)

    async def rows_become(self, query: str, expected: list[Any], timeout_s: float = 240.0) -> None:
        """Wait until `query` returns the expected rows."""
        found: list[Any] = []

        async def are_so() -> bool:
            nonlocal found
            found = await self.rows(query)
            return found == expected

        try:
            await eventually(are_so, timeout_s)
        except TimeoutError:
            raise AssertionError(f"{query}\n{found}\nand not\n{expected}") from None
