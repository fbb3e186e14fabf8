"""Query on tasks without progress."""

from collections.abc import Collection

from sqlalchemy import Double, and_, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.decisions.task_warnings import Stall, TaskWarning
from scheduler_svc.store.queries.sql.parameters import in_state
from scheduler_svc.store.states import LIVE, EvaluationState, GroupState, StepState, TaskState, TrajectoryState, VoidReason
from scheduler_svc.store.tables import evaluations, groups, ledger, steps, tasks, trajectories

_SCORED = (
    select(func.max(trajectories.c.scored_at))
    .where(trajectories.c.task == tasks.c.id, in_state(trajectories.c.state, TrajectoryState.SCORED))
    .scalar_subquery()
)
_REFILLED = (  # scored too, all with the same reward
    select(func.max(groups.c.ended_at))
    .where(groups.c.task == tasks.c.id, in_state(groups.c.state, GroupState.VOID), in_state(groups.c.void_reason, VoidReason.ZERO_VARIANCE))
    .scalar_subquery()
)
_EVALUATED = select(func.max(ledger.c.at)).where(ledger.c.task == tasks.c.id, ledger.c.kind == "evaluation").scalar_subquery()
_SECONDS = func.extract("epoch", func.now() - func.greatest(tasks.c.updated_at, _SCORED, _REFILLED, _EVALUATED)).cast(Double)


async def stalled_tasks(connection: AsyncConnection, limit_s: float, only: Collection[str] | None = None) -> dict[str, Stall | None]:
    """Tasks without progress for `limit_s`, and, as None, those that progress but still have the warning. `only`: among these."""
    is_waiting = and_(
        tasks.c.state.in_([TaskState.SUBMITTED, TaskState.RUNNING]),
        tasks.c.updated_at < func.now() - func.make_interval(0, 0, 0, 0, 0, 0, limit_s),
    )
    is_warned = and_(tasks.c.state.in_(LIVE), tasks.c.warnings[TaskWarning.NO_PROGRESS].astext.is_not(None))
    statement = select(
        tasks.c.id,
        tasks.c.state,
        tasks.c.pool,
        tasks.c.family,
        tasks.c.spec["environment"]["name"].astext.label("environment"),
        _SECONDS.label("seconds"),
        select(func.count())
        .where(groups.c.task == tasks.c.id, in_state(groups.c.state, GroupState.OPEN))
        .scalar_subquery()
        .label("open_groups"),
        select(steps.c.task).where(steps.c.task == tasks.c.id, in_state(steps.c.state, StepState.BATCHED)).exists().label("is_training"),
        select(evaluations.c.task)
        .where(evaluations.c.task == tasks.c.id, in_state(evaluations.c.state, EvaluationState.RUNNING))
        .exists()
        .label("is_evaluating"),
    ).where(or_(is_waiting, is_warned))
    if only is not None:
        statement = statement.where(tasks.c.id.in_(only))
    found: dict[str, Stall | None] = {}
    for row in (await connection.execute(statement)).all():
        goes_on = row.seconds < limit_s or row.state == TaskState.PAUSED
        found[row.id] = None if goes_on else Stall(
            seconds=row.seconds,
            is_accepted=row.state != TaskState.SUBMITTED,
            pool=row.pool,
            environment=row.environment,
            family=row.family,
            open_groups=row.open_groups,
            is_training=row.is_training,
            is_evaluating=row.is_evaluating,
        )  # fmt: skip
    return found
