"""Statements that are written once, by SQLAlchemy, and run by psycopg.

Of the processor time that a short statement takes SQLAlchemy and psycopg, more than half is SQLAlchemy's. So the frequent ones,
constants anyway (`parameters.py`), are compiled when their module is loaded and go to psycopg as they are, in the connection's own
transaction. All others, which are rare, are built where they are needed and run in the usual way.
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
    """What `clause` says, with the parameters that it leaves open."""

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
        """Its rows, as named tuples; none where it returns none; within a transaction. Raises: psycopg's errors."""
        given = {**self._fixed, **(parameters or {})}
        for name, process in self._processors.items():
            given[name] = process(given[name])
        cursor = _driver(connection).cursor(row_factory=namedtuple_row)
        try:
            await cursor.execute(self._sql, given)  # pyright: ignore[reportArgumentType]  # a literal, in effect
            return await cursor.fetchall() if cursor.description else []
        except Exception:
            raise
        except BaseException as interruption:  # nobody knows how far it came; and taking it back would hide what interrupted it
            await connection.invalidate(interruption)
            raise


def _processor(parameter: BindParameter[Any]) -> Callable[[Any], Any] | None:
    """What the parameter's type does to a value before psycopg takes it."""
    return parameter.type.dialect_impl(_DIALECT).bind_processor(_DIALECT)


def _driver(connection: AsyncConnection) -> PsycopgConnection[Any]:
    assert connection.sync_connection is not None and connection.in_transaction()
    return connection.sync_connection.connection.driver_connection  # pyright: ignore
