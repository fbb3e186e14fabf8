"""Queries on deadlines: overdue groups, the share of the time until the deadline that is spent, and pool clocks."""

from sqlalchemy import Double, func, literal_column, not_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import PoolClock
from scheduler_svc.base.sql import GroupKey, Statement, given, in_state, parked_ms, seconds
from scheduler_svc.base.states import GroupState
from scheduler_svc.base.tables import IN_TRAINING, groups, tasks
from scheduler_svc.base.tables import pool_clocks as clocks

CLOCKS_MAY_DIFFER_S = 5.0
"""Maximum difference between NATS's and PostgreSQL's clocks, in seconds; beyond it one of them was set back."""

_timeout = func.make_interval(0, 0, 0, 0, 0, 0, tasks.c.spec["limits"]["episode_timeout_s"].as_float())
_back = func.make_interval(0, 0, 0, 0, 0, 0, CLOCKS_MAY_DIFFER_S)
_parked_ms = parked_ms(given("now_s", Double))
_now = func.to_timestamp(given("now_s", Double)) - seconds(_parked_ms)
_parked = seconds(func.greatest(literal_column("0"), _parked_ms - groups.c.parked_ms))
_of_open_groups = groups.join(tasks, tasks.c.id == groups.c.task).outerjoin(clocks, clocks.c.pool == tasks.c.pool)
_overdue = (
    select(groups.c.task, groups.c.number)
    .select_from(_of_open_groups)
    .where(
        IN_TRAINING,
        in_state(groups.c.state, GroupState.OPEN),
        not_(groups.c.deadline_at.between(_now, _now + _timeout + _back)),
        not_(groups.c.admitted_at.between(func.now() - _timeout - _parked, func.now() + _back)),
    )
)
_OVERDUE, _OVERDUE_OF = Statement(_overdue), Statement(_overdue.where(groups.c.task == given("of_task")))


async def overdue_groups(connection: AsyncConnection, now_s: float, of_task: str | None = None) -> list[GroupKey]:
    """Open groups in training, of `of_task` or of all tasks, that are past their deadlines by both NATS's clock (`now_s`) and PostgreSQL's.

    Time for which the group's pool was parked is subtracted from both. Both clocks must agree, so that one clock that jumps ahead makes no
    group overdue. A clock that was set back counts as agreeing, so that the other clock decides.
    """
    if of_task is None:
        found = await _OVERDUE.run(connection, {"now_s": now_s})
    else:
        found = await _OVERDUE_OF.run(connection, {"now_s": now_s, "of_task": of_task})
    return [(row.task, row.number) for row in found]


_left = func.extract("epoch", groups.c.deadline_at - _now) / func.extract("epoch", _timeout)
_SPENT = Statement(
    select(tasks.c.pool, func.max(1 - _left).label("share"))
    .select_from(_of_open_groups)
    .where(IN_TRAINING, in_state(groups.c.state, GroupState.OPEN))
    .group_by(tasks.c.pool)
)


async def time_spent(connection: AsyncConnection, now_s: float) -> dict[str, float]:
    """Largest share of the time until its deadline that an open group has spent, by pool. `now_s`: NATS's clock."""
    return {row.pool: float(row.share) for row in await _SPENT.run(connection, {"now_s": now_s})}


_OVERDUE_EVALUATION = Statement(
    select(groups.c.task, groups.c.number)
    .select_from(_of_open_groups)
    .where(not_(IN_TRAINING), in_state(groups.c.state, GroupState.OPEN), groups.c.deadline_at < _now)
)


async def overdue_evaluation_groups(connection: AsyncConnection, now_s: float) -> list[GroupKey]:
    """Open evaluation groups past their deadlines by their pool's clock. `now_s`: NATS's clock."""
    return [(row.task, row.number) for row in await _OVERDUE_EVALUATION.run(connection, {"now_s": now_s})]


_SINCE = func.extract("epoch", clocks.c.parked_since).cast(Double).label("since_s")
_CLOCKS = Statement(select(clocks.c.pool, clocks.c.parked_ms, _SINCE))


async def pool_clocks(connection: AsyncConnection) -> dict[str, PoolClock]:
    """Clocks by pool, for all pools that have ever shared an accelerator."""
    found = await _CLOCKS.run(connection)
    return {row.pool: PoolClock(parked_s=row.parked_ms / 1000, parked_since_s=row.since_s) for row in found}
