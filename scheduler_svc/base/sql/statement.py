"""Statements compiled once by SQLAlchemy and run by psycopg.

SQLAlchemy takes more than half of the processor time of a short statement. Frequent statements, which are constants
(`parameters.py`), are therefore compiled when their module is loaded, and go to psycopg in the connection's own transaction.
Rare ones are built where they are needed and run in the usual way.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from psycopg import AsyncConnection as PsycopgConnection
from psycopg.rows import namedtuple_row
from sqlalchemy import BindParameter, ClauseElement
from sqlalchemy.dialects.postgresql.psycopg import PGDialectAsync_psycopg
from sqlalchemy.ext.asyncio import AsyncConnection

_DIALECT = PGDialectAsync_psycopg()


class Statement:
    """A compiled `clause` with its parameters."""

    def __init__(self, clause: ClauseElement) -> None:
        compiled: Any = clause.compile(dialect=_DIALECT)
        self._sql: str = compiled.string
        self._fixed: dict[str, object] = {}
        self._processors: dict[str, Callable[[Any], Any]] = {}
        for parameter, name in compiled.bind_names.items():
            process = _processor(parameter)
            if not parameter.required:
                value = parameter.effective_value
                self._fixed[name] = process(value) if process else value.value if isinstance(value, Enum) else value
            elif process:
                self._processors[name] = process
        if "[POSTCOMPILE" in self._sql:
            raise ValueError(f"spell the list out, as `in_state` does: {self._sql}")

    async def run(self, connection: AsyncConnection, parameters: Mapping[str, object] | None = None) -> list[Any]:
        """Run within a transaction; returns rows as named tuples. Raises: psycopg's errors."""
        given = {**self._fixed, **(parameters or {})}
        for name, process in self._processors.items():
            given[name] = process(given[name])
        cursor = _driver(connection).cursor(row_factory=namedtuple_row)
        try:
            await cursor.execute(self._sql, given)  # pyright: ignore[reportArgumentType]  # a literal, in effect
            return await cursor.fetchall() if cursor.description else []
        except Exception:
            raise
        except BaseException as interruption:  # its progress is unknown, and a rollback would hide the interruption
            await connection.invalidate(interruption)
            raise


def _processor(parameter: BindParameter[Any]) -> Callable[[Any], Any] | None:
    """Conversion of a value by the parameter's type, before psycopg gets it."""
    return parameter.type.dialect_impl(_DIALECT).bind_processor(_DIALECT)


def _driver(connection: AsyncConnection) -> PsycopgConnection[Any]:
    assert connection.sync_connection is not None and connection.in_transaction()
    return connection.sync_connection.connection.driver_connection  # pyright: ignore
