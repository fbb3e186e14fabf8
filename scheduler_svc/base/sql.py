"""Statements that SQLAlchemy compiles once and psycopg runs, their parameters, and SQL for time on a pool's clock.

SQLAlchemy needs longer to build a statement (1.5 ms for the longest here) than to send it. When a short statement runs, SQLAlchemy takes
more than half of the processor time. PostgreSQL parses every new text. Frequent statements are therefore constants, compiled when their
module is loaded, and go to psycopg in the connection's own transaction. Values are parameters: a list is one array, and rows are one array
per column. Rare statements are built per call and run through SQLAlchemy.

States are literals if a partial index covers them (`in_state`): PostgreSQL may switch to a generic plan, which
can only use an index whose condition is part of the statement's text.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum, StrEnum
from typing import Any

from psycopg import AsyncConnection as PsycopgConnection
from psycopg.rows import namedtuple_row
from sqlalchemy import (
    ARRAY,
    BigInteger,
    BindParameter,
    ClauseElement,
    Column,
    ColumnElement,
    Integer,
    Text,
    all_,
    any_,
    bindparam,
    column,
    func,
    literal_column,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql.psycopg import PGDialectAsync_psycopg
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import TypeEngine

from scheduler_svc.base.tables import pool_clocks, tasks

GroupKey = tuple[str, int]
"""(task, number of the group in the task)"""


def given(name: str, kind: type[TypeEngine[Any]] | TypeEngine[Any] | None = None) -> BindParameter[Any]:
    """Parameter of a single value; compared with or assigned to a column, it takes that column's type."""
    return bindparam(name, type_=kind)


def any_of(name: str, kind: type[TypeEngine[Any]] = Text) -> ColumnElement[Any]:
    """Right side of a comparison that holds for any value of a list parameter."""
    return any_(bindparam(name, type_=ARRAY(kind)))


def all_of(name: str) -> ColumnElement[Any]:
    """Right side of a comparison that holds for every value of a list parameter of texts; always true for an empty list."""
    return all_(bindparam(name, type_=ARRAY(Text)))


def in_state(state: ColumnElement[str], *states: StrEnum) -> ColumnElement[bool]:
    """Condition that the state is one of `states`, as literals."""
    return state.in_([literal_column(f"'{each.value}'") for each in states])


class Rows:
    """Rows passed as parameters: one array per column, unnested to a table."""

    def __init__(self, name: str, **columns: type[TypeEngine[Any]] | TypeEngine[Any]) -> None:
        self._parameters = [f"{name}_{each}" for each in columns]
        arrays = [bindparam(f"{name}_{each}", type_=ARRAY(kind)) for each, kind in columns.items()]
        typed = [column(each, kind) for each, kind in columns.items()]
        self.c = func.unnest(*arrays).table_valued(*typed, name=name).render_derived().c

    def of(self, found: Collection[Sequence[object]]) -> dict[str, list[object]]:
        """Parameters for rows whose values are in the order of the columns."""
        return {name: [row[place] for row in found] for place, name in enumerate(self._parameters)}


_keys = Rows("key", task=Text, number=Integer)


def keyed(task: Column[str], number: Column[int]) -> ColumnElement[bool]:
    """Condition that (task, number) is one of the parameters from `keys`."""
    return tuple_(task, number).in_(select(_keys.c.task, _keys.c.number))


def keys(found: Collection[GroupKey]) -> dict[str, list[object]]:
    return _keys.of(sorted(found))


_DIALECT = PGDialectAsync_psycopg()


class Statement:
    """A compiled `clause` and the processors of its parameters."""

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
            await cursor.execute(self._sql, given)  # pyright: ignore[reportArgumentType]  # a constant
            return await cursor.fetchall() if cursor.description else []
        except Exception:
            raise
        except BaseException as interruption:  # the statement's progress is unknown, and a rollback would hide the interruption
            await connection.invalidate(interruption)
            raise


def _processor(parameter: BindParameter[Any]) -> Callable[[Any], Any] | None:
    """Conversion of a value by the parameter's type, applied before psycopg gets it; None if it needs none."""
    return parameter.type.dialect_impl(_DIALECT).bind_processor(_DIALECT)


def _driver(connection: AsyncConnection) -> PsycopgConnection[Any]:
    assert connection.sync_connection is not None and connection.in_transaction()
    return connection.sync_connection.connection.driver_connection  # pyright: ignore


_ZERO, _THOUSAND = literal_column("0"), literal_column("1000")
NOW_S: ColumnElement[Any] = func.extract("epoch", func.now())
"""PostgreSQL's current time in Unix seconds, for uses that need no precision: it may differ from NATS's by some seconds."""


def parked_ms(now_s: ColumnElement[Any]) -> ColumnElement[int]:
    """Total milliseconds for which a pool was parked until `now_s`, from its row of the joined `pool_clocks`. `Any`: float or numeric."""
    clock = pool_clocks.c
    present = func.greatest(_ZERO, (now_s - func.extract("epoch", clock.parked_since)) * _THOUSAND)
    return func.coalesce(clock.parked_ms + func.coalesce(present, _ZERO), _ZERO).cast(BigInteger)


def parked_ms_of_task(task: ColumnElement[str]) -> ColumnElement[int]:
    """As `parked_ms`, until PostgreSQL's current time, for the pool of the task with this id."""
    found = select(parked_ms(NOW_S)).select_from(tasks.join(pool_clocks, pool_clocks.c.pool == tasks.c.pool)).where(tasks.c.id == task)
    return func.coalesce(found.scalar_subquery(), _ZERO)


def seconds(milliseconds: ColumnElement[int]) -> ColumnElement[Any]:
    """PostgreSQL's `interval` of so many milliseconds."""
    return func.make_interval(0, 0, 0, 0, 0, 0, milliseconds / literal_column("1000.0"))
