"""Queries on shares: the virtual times of tasks and tenants, the expected tokens of a group, and the work in flight."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Double, Integer, Text, func, literal, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.base.sql import Rows, Statement, any_of, in_state
from scheduler_svc.base.states import TaskState, TrajectoryState
from scheduler_svc.base.tables import tasks, tenants, trajectories
from scheduler_svc.tenancy.decisions.shares import InFlight, Load

LEARNED_SHARE = 0.25
"""Smoothing factor of the moving average of a task's tokens per group."""


@dataclass(frozen=True)
class Charge:
    """Tokens to charge to a task and its tenant."""

    task: str
    tenant: str
    tokens: float
    admitted: int = 0
    """Number of groups admitted with this charge."""


async def reset_failure_streak(connection: AsyncConnection, ids: Collection[str]) -> None:
    """Reset the failure streaks of these tasks: a group of each has succeeded, whether it is trained or not."""
    await connection.execute(update(tasks).where(tasks.c.id.in_(ids), tasks.c.failures_in_a_row > 0).values(failures_in_a_row=0))


_success = Rows("success", task=Text, tokens=Double)
_UPDATE_TOKEN_ESTIMATE = Statement(
    update(tasks)
    .where(tasks.c.id == _success.c.task)
    .values(
        failures_in_a_row=0,
        group_tokens=func.coalesce(
            tasks.c.group_tokens + (_success.c.tokens - tasks.c.group_tokens) * literal(LEARNED_SHARE, Double), _success.c.tokens
        ),
    )
)


async def update_token_estimate(connection: AsyncConnection, group_tokens: Mapping[str, float]) -> None:
    """Update the tasks' expected tokens per group, a moving average, with the mean of groups that became ready."""
    await _UPDATE_TOKEN_ESTIMATE.run(connection, _success.of(list(group_tokens.items())))


_charged_task = Rows("charged_task", id=Text, tokens=Double, admitted=Integer)
_CHARGE_TASKS = Statement(
    update(tasks)
    .where(tasks.c.id == _charged_task.c.id)
    .values(virtual_time=tasks.c.virtual_time + _charged_task.c.tokens, admitted=tasks.c.admitted + _charged_task.c.admitted)
)
_charged = Rows("charged", id=Text, tokens=Double)
# Locks tenants in id order before the update, which would lock in any order. FOR NO KEY UPDATE, as an update takes, does not block
# concurrent inserts of ledger rows, which reference a tenant.
_charged_tenants = select(tenants.c.id).where(tenants.c.id == any_of("charged_id")).order_by(tenants.c.id)
_locked = _charged_tenants.with_for_update(key_share=True).cte("locked")
_CHARGE_TENANTS = Statement(
    update(tenants)
    .where(tenants.c.id == _locked.c.id, tenants.c.id == _charged.c.id)
    .values(virtual_time=tenants.c.virtual_time + _charged.c.tokens / tenants.c.weight)
)


async def charge(connection: AsyncConnection, charges: Collection[Charge]) -> None:
    """Add tokens (may be negative) to the virtual times of locked tasks and of their tenants, and admitted groups to the tasks' counts."""
    if not charges:
        return
    by_task: defaultdict[str, list[Charge]] = defaultdict(list)
    by_tenant: defaultdict[str, float] = defaultdict(float)
    for one in charges:
        by_task[one.task].append(one)
        by_tenant[one.tenant] += one.tokens
    rows = [(task, sum((one.tokens for one in found), 0.0), sum(one.admitted for one in found)) for task, found in by_task.items()]
    await _CHARGE_TASKS.run(connection, _charged_task.of(rows))
    await charge_tenants(connection, by_tenant)


async def charge_tenants(connection: AsyncConnection, tokens: Mapping[str, float]) -> None:
    """Add tokens to the virtual times of tenants only: for work of no task, such as served requests."""
    if tokens:
        await _CHARGE_TENANTS.run(connection, _charged.of(list(tokens.items())))


@dataclass(frozen=True)
class VirtualTimes:
    """Virtual times of the other members of a queue."""

    active: list[float]
    """Virtual times of running members."""
    past: float
    """Largest virtual time of all these members, running or not; 0 if there are none."""


async def virtual_times(connection: AsyncConnection, task: str, tenant: str) -> tuple[VirtualTimes, VirtualTimes]:
    """Virtual times of other tenants, and of the tenant's other live tasks."""
    running = tasks.c.state == TaskState.RUNNING
    runs = select(tasks.c.id).where(tasks.c.tenant == tenants.c.id, running).exists()
    others = select(tenants.c.virtual_time, runs.label("runs")).where(tenants.c.id != tenant)
    siblings = select(tasks.c.virtual_time, running.label("runs")).where(
        tasks.c.tenant == tenant, tasks.c.id != task, tasks.c.state.in_((TaskState.RUNNING, TaskState.PAUSED))
    )
    tenant_rows, task_rows = (await connection.execute(others)).all(), (await connection.execute(siblings)).all()
    return _virtual_times(tenant_rows), _virtual_times(task_rows)


def _virtual_times(rows: Sequence[Any]) -> VirtualTimes:
    return VirtualTimes([row.virtual_time for row in rows if row.runs], max((row.virtual_time for row in rows), default=0.0))


async def start_shares(connection: AsyncConnection, task: str, tenant: str, *, task_time: float, tenant_time: float) -> None:
    """Raise the virtual times of the task and of the tenant to at least these values."""
    await connection.execute(update(tasks).where(tasks.c.id == task).values(virtual_time=func.greatest(tasks.c.virtual_time, task_time)))
    await connection.execute(
        update(tenants).where(tenants.c.id == tenant).values(virtual_time=func.greatest(tenants.c.virtual_time, tenant_time))
    )


_open = (
    select(trajectories.c.task, func.count().label("sequences"))
    .where(in_state(trajectories.c.state, TrajectoryState.OPEN))
    .group_by(trajectories.c.task)
    .subquery("open")
)
# A subquery per row, since few tenants have work in flight: with a join, PostgreSQL would read all tenants.
_weight = select(tenants.c.weight).where(tenants.c.id == tasks.c.tenant).scalar_subquery()
_IN_FLIGHT = Statement(
    select(_open.c.task, _open.c.sequences, tasks.c.pool, tasks.c.trajectory_tokens, tasks.c.tenant, _weight.label("weight")).select_from(
        _open.join(tasks, tasks.c.id == _open.c.task)
    )
)


async def work_in_flight(connection: AsyncConnection) -> dict[str, InFlight]:
    """Load of each pool with open members: their number (sequences), and their maximum tokens."""
    found: dict[str, InFlight] = {}
    for row in await _IN_FLIGHT.run(connection):
        load = Load(int(row.sequences), float(row.sequences * row.trajectory_tokens))
        found.setdefault(row.pool, InFlight()).add(row.tenant, row.weight, row.task, load)
    return found
