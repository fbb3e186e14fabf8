"""Statuses of tasks, as the key-value bucket `tasks` has them, from the rows themselves."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, and_, case, func, or_, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import AdapterRef, AskTasks, TaskStatus, from_json
from scheduler_svc.base.sql import any_of, in_state
from scheduler_svc.base.states import GroupState, StepState, VoidReason
from scheduler_svc.base.tables import NUMBERED_IN_TRAINING, dead_letters, groups, steps, tasks
from scheduler_svc.reading.queries.listing import cursor_of, listing
from scheduler_svc.training.queries.progress import LATEST_GROUPS, end_of_task, latest_trained_at


@dataclass(frozen=True)
class Listed:
    """A task of a listing, and the cursor of what follows it."""

    status: TaskStatus
    cursor: str


async def statuses(connection: AsyncConnection, tenant: str | None, asked: AskTasks) -> list[Listed]:
    """At most `asked.most` statuses, in the order that was asked for. Raises: Reject when the cursor is one of another order."""
    listed = (await connection.execute(listing(tenant, asked))).all()
    of_page = _STATUSES.where(tasks.c.id == any_of("of_page"))
    rows = {row.id: row for row in (await connection.execute(of_page, {"of_page": [one.id for one in listed]})).all()}
    return [Listed(_status(rows[one.id]), cursor_of(asked.sort, one.key, one.id)) for one in listed]


async def status(connection: AsyncConnection, tenant: str | None, task: str) -> TaskStatus | None:
    """None when the tenant has no such task, whoever else may have one."""
    statement = _STATUSES.where(tasks.c.id == task)
    if tenant is not None:
        statement = statement.where(tasks.c.tenant == tenant)
    row = (await connection.execute(statement)).first()
    return _status(row) if row else None


def _statement() -> Select[Any]:
    trained = (
        select(steps.c.reward, steps.c.staleness_mean)
        .where(steps.c.task == tasks.c.id, in_state(steps.c.state, StepState.TRAINED))
        .order_by(steps.c.version.desc())
        .limit(1)
        .lateral("trained")
    )
    latest = (
        select(groups.c.state, groups.c.void_reason)
        .where(groups.c.task == tasks.c.id, NUMBERED_IN_TRAINING)
        .order_by(groups.c.number.desc())
        .limit(LATEST_GROUPS)
        .correlate(tasks)
        .subquery("latest")
        .lateral()
    )
    failed = and_(latest.c.void_reason.is_not(None), in_state(latest.c.void_reason, VoidReason.FAILED, VoidReason.DEADLINE))
    scored = in_state(latest.c.state, GroupState.READY, GroupState.BATCHED, GroupState.TRAINED)
    ended = select(func.count(case((failed, 1))).label("failed"), func.count(case((or_(failed, scored), 1))).label("ended"))
    shares = ended.select_from(latest).lateral("shares")
    letters = select(func.count()).where(dead_letters.c.task == tasks.c.id).scalar_subquery().label("letters")
    ends = latest_trained_at(tasks.c.id).label("ends")
    rows = tasks.outerjoin(trained, true()).outerjoin(shares, true())
    return select(tasks, trained.c.reward, trained.c.staleness_mean, shares.c.failed, shares.c.ended, letters, ends).select_from(rows)


_STATUSES = _statement()


def _status(row: Any) -> TaskStatus:
    return TaskStatus(
        tenant=row.tenant,
        task=row.id,
        name=row.name,
        pool=row.pool,
        state=row.state,
        reason=row.reason,
        version=row.version,
        steps=row.steps,
        reward=row.reward,
        staleness=row.staleness_mean,
        sampled_tokens=row.sampled_tokens,
        failed_share=row.failed / row.ended if row.ended else None,
        dead_letters=row.letters,
        adapter=from_json(AdapterRef, row.adapter) if row.adapter else None,
        warnings=row.warnings,
        expected_end_s=end_of_task(row.state, row.ends, row.steps - row.version),
        submitted_s=row.submitted_at.timestamp(),
        updated_s=row.updated_at.timestamp(),
    )
