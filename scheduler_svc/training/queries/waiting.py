"""Query on what one task waits for."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Double, func, not_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from common.limits import Limit
from scheduler_svc.base.sql import in_state
from scheduler_svc.base.states import LIVE, GroupState, StepState, TaskState
from scheduler_svc.base.tables import IN_TRAINING, allowance_of, groups, steps, tasks, tenants
from scheduler_svc.tenancy.decisions.shares import InFlightLimits, Load
from scheduler_svc.tenancy.limits import USED_UP, WITH_LIMITS, limit_of, used_up
from scheduler_svc.training.decisions.sharing.waiting import Limits, TrainerQueue, WaitingTask

IN_FLIGHT: tuple[Limit, ...] = ("max_sequences", "max_pool_sequences", "max_pool_tokens")
LATEST_STEPS = 20
"""Latest steps of a pool over which the time of a step is averaged."""
LATEST_OF_ALL_POOLS = 50 * LATEST_STEPS
"""Latest steps of all pools among which these are, so that no ask reads every step."""


@dataclass(frozen=True)
class Found:
    """A task that has not ended, its family (None: not known yet) and its tenant's limits."""

    tenant: str
    task: WaitingTask
    family: str | None
    limits: Limits
    over_budget: bool
    """Whether a budget has paused it."""


async def waiting_task(connection: AsyncConnection, tenant: str | None, task: str) -> Found | None:
    """None when the tenant has no such task, or it has ended. `tenant`: None for any."""
    own = (groups.c.task == tasks.c.id, IN_TRAINING, groups.c.state == GroupState.OPEN)
    ready = select(func.count()).where(groups.c.task == tasks.c.id, groups.c.state == GroupState.READY)
    oldest_s = select(func.extract("epoch", func.now() - func.min(groups.c.admitted_at)).cast(Double)).where(*own)
    batched_at = select(steps.c.batched_at).where(steps.c.task == tasks.c.id, steps.c.state == StepState.BATCHED)
    planned = select(func.count()).where(groups.c.task == tasks.c.id, not_(IN_TRAINING), in_state(groups.c.state, GroupState.PLANNED))
    statement = (
        select(
            tasks.c.tenant, tasks.c.pool, tasks.c.family, tasks.c.state, tasks.c.accepted_at, tasks.c.group_size, tasks.c.trajectory_tokens,
            tasks.c.over_budget, tasks.c.groups_per_step, tasks.c.spec["environment"]["name"].astext.label("environment"),
            tasks.c.spec["limits"]["episode_timeout_s"].as_float().label("timeout_s"),
            (func.greatest(allowance_of(tasks.c), 0) + planned.scalar_subquery()).label("allowance"),
            select(func.count()).where(*own).scalar_subquery().label("open_groups"),
            ready.scalar_subquery().label("ready_groups"),
            oldest_s.scalar_subquery().label("oldest_s"),
            batched_at.scalar_subquery().label("batched_at"),
            *(limit_of(name).label(name) for name in (*IN_FLIGHT, *USED_UP)),
            *used_up(),
        )
        .select_from(tasks.join(WITH_LIMITS, tenants.c.id == tasks.c.tenant))
        .where(tasks.c.id == task, tasks.c.state.in_(LIVE))
    )  # fmt: skip
    if tenant is not None:
        statement = statement.where(tasks.c.tenant == tenant)
    row = (await connection.execute(statement)).first()
    if row is None:
        return None
    found = WaitingTask(
        pool=row.pool,
        environment=row.environment,
        is_accepted=row.state != TaskState.SUBMITTED,
        is_paused=row.state == TaskState.PAUSED,
        allowance=row.allowance,
        group=Load(row.group_size, float(row.group_size * row.trajectory_tokens)),
        open_groups=row.open_groups,
        ready_groups=row.ready_groups,
        groups_per_step=row.groups_per_step,
        oldest_s=row.oldest_s or 0.0,
        timeout_s=row.timeout_s,
        queue=None if row.batched_at is None else await _queue(connection, row.pool, row.batched_at),
    )
    return Found(row.tenant, found, row.family, _limits(row), row.over_budget)


def _limits(row: Any) -> Limits:
    """`Any`: a row of the query above."""
    values = row._mapping
    used: list[tuple[Limit, int, int]] = [(name, values[name], values[f"used_{name}"]) for name in USED_UP if values[name] is not None]
    in_flight = InFlightLimits(*(values[name] for name in IN_FLIGHT))
    return Limits(used, in_flight, row.tenant)


async def _queue(connection: AsyncConnection, pool: str, batched_at: object) -> TrainerQueue:
    """The pool's steps that were sent before `batched_at`, and how long its latest steps took."""
    of_pool = steps.join(tasks, tasks.c.id == steps.c.task)
    before = (
        select(func.count())
        .select_from(of_pool)
        .where(tasks.c.pool == pool, in_state(steps.c.state, StepState.BATCHED), steps.c.batched_at < batched_at)
    )
    seconds = func.extract("epoch", steps.c.finished_at - steps.c.started_at).cast(Double).label("seconds")
    recent = (
        select(steps.c.task, seconds, steps.c.trained_at)
        .where(in_state(steps.c.state, StepState.TRAINED))
        .order_by(steps.c.trained_at.desc())
        .limit(LATEST_OF_ALL_POOLS)
        .subquery()
    )
    latest = (
        select(recent.c.seconds)
        .select_from(recent.join(tasks, tasks.c.id == recent.c.task))
        .where(tasks.c.pool == pool)
        .order_by(recent.c.trained_at.desc())
        .limit(LATEST_STEPS)
        .subquery()
    )
    row = (await connection.execute(select(before.scalar_subquery(), select(func.avg(latest.c.seconds)).scalar_subquery()))).one()
    return TrainerQueue(row[0], row[1])
