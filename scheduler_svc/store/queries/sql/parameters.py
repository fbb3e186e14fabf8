"""Parameters of statements that are built once, when their module is loaded.

SQLAlchemy needs longer to build a statement (1.5 ms for the longest here) than to send it, and PostgreSQL parses anew what it has
not seen in these very words. So the frequent statements are constants, and what differs from call to call travels as parameters:
many values as one array, many rows as an array for each column.

States are no parameters where a partial index finds the few rows that are in them (`in_state`): after some runs PostgreSQL may plan
a statement once for all parameters, and such a plan can only take an index whose rows the statement's own words ask for.
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
    """A single value; compared with or assigned to a column, it takes that column's type."""
    return bindparam(name, type_=kind)


def any_of(name: str, kind: type[TypeEngine[Any]] = Text) -> ColumnElement[Any]:
    """To compare a column with: any of a list."""
    return any_(bindparam(name, type_=ARRAY(kind)))


def all_of(name: str, kind: type[TypeEngine[Any]] = Text) -> ColumnElement[Any]:
    """To compare a column with: each of a list; what is not equal to all of an empty one is everything."""
    return all_(bindparam(name, type_=ARRAY(kind)))


def in_state(state: ColumnElement[str], *states: StrEnum) -> ColumnElement[bool]:
    """The row is in one of these states, spelt out."""
    return state.in_([literal_column(f"'{each.value}'") for each in states])


class Rows:
    """A table of parameters."""

    def __init__(self, name: str, **columns: type[TypeEngine[Any]] | TypeEngine[Any]) -> None:
        self._parameters = [f"{name}_{each}" for each in columns]
        arrays = [bindparam(f"{name}_{each}", type_=ARRAY(kind)) for each, kind in columns.items()]
        typed = [column(each, kind) for each, kind in columns.items()]
        self.c = func.unnest(*arrays).table_valued(*typed, name=name).render_derived().c

    def of(self, found: Collection[Sequence[object]]) -> dict[str, list[object]]:
        """The parameters, of rows in the order of the columns."""
        return {name: [row[place] for row in found] for place, name in enumerate(self._parameters)}


_keys = Rows("key", task=Text, number=Integer)


def keyed(task: Column[str], number: Column[int]) -> ColumnElement[bool]:
    """The row is of one of the groups that `keys` names."""
    return tuple_(task, number).in_(select(_keys.c.task, _keys.c.number))


def keys(found: Collection[GroupKey]) -> dict[str, list[object]]:
    return _keys.of(sorted(found))
