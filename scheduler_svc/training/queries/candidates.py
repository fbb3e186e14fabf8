"""Queries on candidates for admission: which tasks wait, in fair order."""

from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, Double, Integer, func, literal_column, not_, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.base.sql import Statement, all_of, any_of, given, in_state
from scheduler_svc.base.states import EvaluationState, GroupState, TaskState
from scheduler_svc.base.tables import IN_TRAINING, MAY_ADMIT, allowance_of, budgets, evaluations, groups, tasks, tenants
from scheduler_svc.tenancy.decisions.shares import InFlightLimits, Place, TaskShare, TenantShare
from scheduler_svc.tenancy.limits import USED_UP, WITH_LIMITS, is_within, limit_of, may_admit


@dataclass(frozen=True)
class Candidates:
    """Tasks that may admit groups, and their tenants by id."""

    tasks: list[TaskShare]
    tenants: dict[str, TenantShare]

    def __add__(self, other: "Candidates") -> "Candidates":
        return Candidates(self.tasks + other.tasks, self.tenants | other.tenants)


class AdmissibleWork(NamedTuple):
    """Kinds of work that could be admitted."""

    groups: bool
    """Whether the pace of a running task allows more groups."""
    evaluations: bool
    """Whether an evaluation has groups that are not opened yet."""
    has_budgets: bool
    """Whether any tenant has a budget."""

    @property
    def is_some(self) -> bool:
        return self.groups or self.evaluations


def _columns(task: Any, tenant: Any, allowance: ColumnElement[int]) -> list[ColumnElement[Any]]:
    """Columns of a candidate. `Any`: columns of a table or of a subquery, which have no common type."""
    reserved, timeout_s = task.group_size * task.trajectory_tokens, task.spec["limits"]["episode_timeout_s"].as_float()
    return [
        task.id.label("task"),
        *(task[name] for name in ("tenant", "pool", "priority", "virtual_time", "group_size")),
        allowance.label("allowance"),
        reserved.cast(Double).label("reserved_tokens"),
        (task.group_size * func.ceil(timeout_s * literal_column("1000")).cast(BigInteger)).label("reserved_env_ms"),
        func.coalesce(task.group_tokens, reserved).cast(Double).label("group_tokens"),
        tenant.weight,
        tenant.virtual_time.label("tenant_time"),
    ]


_SHARE = (
    "task",
    "tenant",
    "pool",
    "priority",
    "virtual_time",
    "allowance",
    "group_size",
    "group_tokens",
    "reserved_tokens",
    "reserved_env_ms",
)
"""Columns that are fields of a `TaskShare`."""
_is_planned = not_(IN_TRAINING) & in_state(groups.c.state, GroupState.PLANNED)
_ADMISSIBLE_WORK = Statement(
    select(
        select(tasks.c.id).where(MAY_ADMIT).exists(),
        select(groups.c.number).where(_is_planned).exists(),
        select(budgets.c.tenant).exists(),
    ).where(func.pg_try_advisory_xact_lock(given("lock", Integer)))
)


async def has_admissible_work(connection: AsyncConnection, *, lock: int) -> AdmissibleWork | None:
    """Kinds of work that any pool could admit; usually none, so that no other query is needed.

    Takes the advisory `lock` until the transaction ends; None if another transaction holds it.
    """
    found = await _ADMISSIBLE_WORK.run(connection, {"lock": lock})
    return AdmissibleWork(*found[0]) if found else None


_LIMITS = tuple(limit_of(name).label(name) for name in ("max_sequences", "max_pool_sequences", "max_pool_tokens"))
_SEPARATOR = "/"
"""Separator of tenant and pool in a `Place` key; not allowed in either name."""
_of_a_place = tasks.c.tenant + literal_column(f"'{_SEPARATOR}'") + tasks.c.pool
_not_left_out = (
    tasks.c.pool == any_of("pools"),
    tasks.c.tenant != all_of("but_tenants"),
    tasks.c.id != all_of("but_tasks"),
    _of_a_place != all_of("but_places"),
)
_may_open = (MAY_ADMIT, *_not_left_out)
# OFFSET is an optimization barrier: usage sums are computed only for the tenants reached in order, not for all before the sort.
_in_order = (
    select(tenants, *_LIMITS, *(limit_of(name).label(name) for name in USED_UP))
    .select_from(WITH_LIMITS)
    .where(select(tasks.c.id).where(tasks.c.tenant == tenants.c.id, *_may_open).exists())
    .order_by(tenants.c.virtual_time, tenants.c.id)
    .offset(literal_column("0"))
    .subquery("in_order")
)
_least_served = (
    select(_in_order)
    .where(is_within(_in_order.c.id, lambda name: _in_order.c[name]))
    .order_by(_in_order.c.virtual_time, _in_order.c.id)
    .limit(given("limit", Integer))
    .subquery("least_served")
)
_waiting = (
    select(tasks)
    .where(tasks.c.tenant == _least_served.c.id, *_may_open)
    .order_by(tasks.c.priority.desc(), tasks.c.virtual_time, tasks.c.id)
    .limit(given("limit", Integer))
    .lateral("waiting")
)
_LEAST_SERVED_TASKS = Statement(
    select(
        *_columns(_waiting.c, _least_served.c, allowance_of(_waiting.c)),
        *(_least_served.c[each.name] for each in _LIMITS),
    ).select_from(_least_served.join(_waiting, true()))
)


@dataclass(frozen=True)
class LeftOut:
    """Tenants, places and tasks that a candidate query excludes."""

    tenants: Set[str] = frozenset()
    places: Set[Place] = frozenset()
    """Excluded (tenant, pool) pairs."""
    tasks: Set[str] = frozenset()

    def __or__(self, other: "LeftOut") -> "LeftOut":
        return LeftOut(self.tenants | other.tenants, self.places | other.places, self.tasks | other.tasks)

    def has(self, task: TaskShare) -> bool:
        return task.tenant in self.tenants or task.place in self.places or task.task in self.tasks

    def parameters(self) -> dict[str, list[str]]:
        places = [_SEPARATOR.join(place) for place in sorted(self.places)]
        return {"but_tenants": sorted(self.tenants), "but_tasks": sorted(self.tasks), "but_places": places}


NOTHING = LeftOut()


async def least_served_tasks(connection: AsyncConnection, pools: Collection[str], *, limit: int, but: LeftOut = NOTHING) -> Candidates:
    """Candidates for the next `limit` groups: the next `limit` tasks of each of the `limit` least-served tenants.

    A candidate is in one of `pools`, may open more groups at its pace, and is not in `but`. Indexes give the order of virtual times, so the
    query takes about as long for ten tasks as for thousands.
    """
    given_values = {"pools": sorted(pools), "limit": limit, **but.parameters()}
    return _candidates(await _LEAST_SERVED_TASKS.run(connection, given_values))


_planned = (groups.c.task == tasks.c.id, _is_planned)
_first_planned = select(groups).where(*_planned).order_by(groups.c.number).limit(1).lateral("first_planned")
_same_protocol = (groups.c.version == _first_planned.c.version, groups.c.protocol == _first_planned.c.protocol)
_planned_groups = select(func.count()).select_from(groups).where(*_planned, *_same_protocol).scalar_subquery()
_EVALUATION_CANDIDATES = Statement(
    select(*_columns(tasks.c, tenants.c, _planned_groups), *_LIMITS, _first_planned.c.size)  # pyright: ignore[reportArgumentType]
    .select_from(tasks.join(WITH_LIMITS, tasks.c.tenant == tenants.c.id).join(_first_planned, true()))
    .where(
        tasks.c.id.in_(select(evaluations.c.task).where(in_state(evaluations.c.state, EvaluationState.RUNNING))),
        tasks.c.state == TaskState.RUNNING,
        may_admit(),
        *_not_left_out,
    )
    .order_by(tenants.c.virtual_time, tenants.c.id, tasks.c.priority.desc(), tasks.c.virtual_time, tasks.c.id)
    .limit(given("limit", Integer))
)


async def evaluation_candidates(connection: AsyncConnection, pools: Collection[str], *, limit: int, but: LeftOut = NOTHING) -> Candidates:
    """Candidates for evaluation groups: up to `limit` running tasks. A task's groups are those of its next protocol, so of one size."""
    found_rows = await _EVALUATION_CANDIDATES.run(connection, {"pools": sorted(pools), "limit": limit, **but.parameters()})
    found = _candidates(found_rows)
    for row, task in zip(found_rows, found.tasks, strict=True):
        task.evaluate(row.size)
    return found


async def candidates_for(connection: AsyncConnection, allowances: dict[str, int], pools: Collection[str]) -> Candidates:
    """Candidates in `pools` that have an allowance (`allowances`: task → groups)."""
    statement = (
        select(*_columns(tasks.c, tenants.c, allowance_of(tasks.c)), *_LIMITS)
        .select_from(tasks.join(WITH_LIMITS, tasks.c.tenant == tenants.c.id))
        .where(may_admit())
        .where(tasks.c.id.in_([task for task, allowance in allowances.items() if allowance > 0]), tasks.c.pool.in_(sorted(pools)))
    )
    found = _candidates((await connection.execute(statement)).all())
    for task in found.tasks:
        task.allowance = allowances[task.task]
    return found


def _candidates(found_rows: Iterable[Any]) -> Candidates:
    found = Candidates([], {})
    for row in found_rows:
        if row.tenant not in found.tenants:
            bounds = InFlightLimits(row.max_sequences, row.max_pool_sequences, row.max_pool_tokens)
            found.tenants[row.tenant] = TenantShare(row.tenant, row.weight, row.tenant_time, bounds)
        found.tasks.append(TaskShare(**{name: getattr(row, name) for name in _SHARE}))
    return found
