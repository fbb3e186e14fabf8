"""Time of pools in statements that join `pool_clocks`; pools without a row were never parked."""

from typing import Any

from sqlalchemy import BigInteger, ColumnElement, func, literal_column, select

from scheduler_svc.base.tables import pool_clocks, tasks

_ZERO, _THOUSAND = literal_column("0"), literal_column("1000")
NOW_S: ColumnElement[Any] = func.extract("epoch", func.now())
"""PostgreSQL's clock, for what need not be exact: NATS's may be some seconds off."""


def parked_ms(now_s: ColumnElement[Any]) -> ColumnElement[int]:
    """Milliseconds for which the pool of the joined clock was parked until `now_s`. `Any`: float or numeric."""
    clock = pool_clocks.c
    present = func.greatest(_ZERO, (now_s - func.extract("epoch", clock.parked_since)) * _THOUSAND)
    return func.coalesce(clock.parked_ms + func.coalesce(present, _ZERO), _ZERO).cast(BigInteger)


def parked_ms_of_task(task: ColumnElement[str]) -> ColumnElement[int]:
    """The same until PostgreSQL's present, of the pool of a task given by its id."""
    found = select(parked_ms(NOW_S)).select_from(tasks.join(pool_clocks, pool_clocks.c.pool == tasks.c.pool)).where(tasks.c.id == task)
    return func.coalesce(found.scalar_subquery(), _ZERO)


def seconds(milliseconds: ColumnElement[int]) -> ColumnElement[Any]:
    """An interval."""
    return func.make_interval(0, 0, 0, 0, 0, 0, milliseconds / literal_column("1000.0"))
