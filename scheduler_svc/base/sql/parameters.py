"""Parameters of statements that are built once, when their module is loaded.

SQLAlchemy needs longer to build a statement (1.5 ms for the longest here) than to send it, and PostgreSQL parses every new
text. Frequent statements are therefore constants, and values are parameters: a list as one array, rows as one array per column.

States are literals where a partial index finds the few rows in them (`in_state`): PostgreSQL may switch to a generic plan, which
can only use an index whose condition is part of the statement's text.
"""

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    ARRAY,
    BindParameter,
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
from sqlalchemy.types import TypeEngine

GroupKey = tuple[str, int]
"""(task, number)"""


def given(name: str, kind: type[TypeEngine[Any]] | TypeEngine[Any] | None = None) -> BindParameter[Any]:
    """Parameter of a single value; compared with or assigned to a column, it takes that column's type."""
    return bindparam(name, type_=kind)


def any_of(name: str, kind: type[TypeEngine[Any]] = Text) -> ColumnElement[Any]:
    """Any value of a list parameter, to compare a column with."""
    return any_(bindparam(name, type_=ARRAY(kind)))


def all_of(name: str) -> ColumnElement[Any]:
    """Every value of a list parameter of texts, to compare a column with; every value differs from all of an empty list."""
    return all_(bindparam(name, type_=ARRAY(Text)))


def in_state(state: ColumnElement[str], *states: StrEnum) -> ColumnElement[bool]:
    """Condition that the row is in one of these states, as literals."""
    return state.in_([literal_column(f"'{each.value}'") for each in states])


class Rows:
    """A table of parameters."""

    def __init__(self, name: str, **columns: type[TypeEngine[Any]] | TypeEngine[Any]) -> None:
        self._parameters = [f"{name}_{each}" for each in columns]
        arrays = [bindparam(f"{name}_{each}", type_=ARRAY(kind)) for each, kind in columns.items()]
        typed = [column(each, kind) for each, kind in columns.items()]
        self.c = func.unnest(*arrays).table_valued(*typed, name=name).render_derived().c

    def of(self, found: Collection[Sequence[object]]) -> dict[str, list[object]]:
        """Parameters for rows with values in the order of the columns."""
        return {name: [row[place] for row in found] for place, name in enumerate(self._parameters)}


_keys = Rows("key", task=Text, number=Integer)


def keyed(task: Column[str], number: Column[int]) -> ColumnElement[bool]:
    """Condition that the row belongs to a group of `keys`."""
    return tuple_(task, number).in_(select(_keys.c.task, _keys.c.number))


def keys(found: Collection[GroupKey]) -> dict[str, list[object]]:
    return _keys.of(sorted(found))
