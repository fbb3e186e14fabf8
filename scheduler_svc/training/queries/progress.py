"""Queries on the progress of tasks: of one task for its status and steps, and of stalled tasks."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Column, ColumnElement, Double, ScalarSelect, Text, and_, case, func, literal_column, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import UNSUPPORTED
from common.messages.status import PACE_STEPS, expected_end_s
from scheduler_svc.base.sql import NOW_S, Rows, Statement, in_state, parked_ms
from scheduler_svc.base.states import LIVE, EvaluationState, GroupState, StepState, TaskState, TrajectoryState, VoidReason
from scheduler_svc.base.tables import (
    IN_TRAINING,
    NUMBERED_IN_TRAINING,
    dead_letters,
    evaluations,
    groups,
    ledger,
    pool_clocks,
    steps,
    tasks,
    trajectories,
)
from scheduler_svc.training.decisions.endings import Failures, Stall, TaskWarning
from scheduler_svc.training.queries.steps import StepSummary

LATEST_GROUPS = 100
"""Number of a task's latest groups in which failures are counted; the view `task_status` uses it too."""


@dataclass(frozen=True)
class TaskProgress:
    """Progress of one task."""

    reward: float | None
    """Mean reward of the latest trained step; None before the first, as is `staleness`."""
    staleness: float | None
    trained_at: Sequence[datetime]
    """Times at which the latest steps were trained, newest first."""
    sampled_tokens: int
    """Tokens sampled for the task's ended groups."""
    dead_letters: int
    failures: Failures
    """Failures among the latest `LATEST_GROUPS` groups admitted."""
    voided: dict[str, int]
    """Groups voided since the latest trained step, by reason."""

    def after(self, step: StepSummary) -> "TaskProgress":
        """This progress with `step` as the latest trained step."""
        return replace(self, reward=step.reward, staleness=step.staleness_mean, trained_at=[step.trained_at, *self.trained_at])


_of = Rows("progress_of", task=Text)


def _of_latest_step(column: Column[Any]) -> ScalarSelect[Any]:
    trained = select(column).where(steps.c.task == _of.c.task, steps.c.state == StepState.TRAINED)
    return trained.order_by(steps.c.version.desc()).limit(1).correlate_except(steps).scalar_subquery()


def latest_trained_at(task: ColumnElement[str]) -> ColumnElement[list[datetime]]:
    """SQL array of the times at which a task's latest steps were trained, newest first."""
    trained = select(steps.c.trained_at).where(steps.c.task == task, in_state(steps.c.state, StepState.TRAINED))
    return func.array(trained.order_by(steps.c.version.desc()).limit(PACE_STEPS + 1).correlate_except(steps).scalar_subquery())


def end_of_task(state: str, trained_at: Sequence[datetime], steps_left: int) -> float | None:
    """Expected end as in `TaskStatus.expected_end_s`. `trained_at`: as in `latest_trained_at`. None unless the task is running."""
    return expected_end_s([one.timestamp() for one in reversed(trained_at)], steps_left) if state == TaskState.RUNNING else None


_latest = (
    select(groups.c.state, groups.c.void_reason, groups.c.detail)
    .where(groups.c.task == _of.c.task, NUMBERED_IN_TRAINING)
    .order_by(groups.c.number.desc())
    .limit(LATEST_GROUPS)
    .correlate_except(groups)
    .lateral("latest")
)
_failed = in_state(_latest.c.void_reason, VoidReason.FAILED, VoidReason.DEADLINE)
_unsupported = and_(_failed, _latest.c.detail.startswith(UNSUPPORTED))
_scored = in_state(_latest.c.state, GroupState.READY, GroupState.BATCHED, GroupState.TRAINED)
_failures = select(
    func.count(case((_failed, 1))).label("failures"),
    func.count(case((or_(_failed, _scored), 1))).label("ended"),
    func.count(case((_unsupported, 1))).label("unsupported"),
).lateral("failures")
_since = func.coalesce(_of_latest_step(steps.c.trained_at), literal_column("'-infinity'::timestamptz"))
_voided = (
    select(groups.c.void_reason, func.count().label("voided"))
    .where(groups.c.task == _of.c.task, in_state(groups.c.state, GroupState.VOID), groups.c.ended_at > _since)
    .group_by(groups.c.void_reason)
    .correlate_except(groups)
    .lateral("voided")
)
_PROGRESS = Statement(
    select(
        _of.c.task,
        _of_latest_step(steps.c.reward),
        _of_latest_step(steps.c.staleness_mean),
        latest_trained_at(_of.c.task),
        select(tasks.c.sampled_tokens).where(tasks.c.id == _of.c.task).scalar_subquery(),
        select(func.count()).select_from(dead_letters).where(dead_letters.c.task == _of.c.task).scalar_subquery(),
        *_failures.c,
        select(func.jsonb_object_agg(_voided.c.void_reason, _voided.c.voided)).scalar_subquery(),
    )
)


async def progress_of(connection: AsyncConnection, *ids: str) -> dict[str, TaskProgress]:
    """Progress by task, within this transaction's snapshot."""
    return {
        task: TaskProgress(reward, staleness, trained_at, tokens, letters, Failures(*counts), voided or {})
        for task, reward, staleness, trained_at, tokens, letters, *counts, voided in await _PROGRESS.run(connection, _of.of([*zip(ids)]))
    }


_SCORED = (
    select(func.max(trajectories.c.scored_at))
    .where(trajectories.c.task == tasks.c.id, in_state(trajectories.c.state, TrajectoryState.SCORED))
    .scalar_subquery()
)
_REFILLED = (  # refilled groups were scored too, with equal rewards
    select(func.max(groups.c.ended_at))
    .where(groups.c.task == tasks.c.id, in_state(groups.c.state, GroupState.VOID), in_state(groups.c.void_reason, VoidReason.ZERO_VARIANCE))
    .scalar_subquery()
)
_EVALUATED = select(func.max(ledger.c.at)).where(ledger.c.task == tasks.c.id, ledger.c.kind == "evaluation").scalar_subquery()
_OLDEST_MS = select(func.min(groups.c.parked_ms)).where(groups.c.task == tasks.c.id, IN_TRAINING, in_state(groups.c.state, GroupState.OPEN))
_BATCHED_MS = select(steps.c.parked_ms).where(steps.c.task == tasks.c.id, in_state(steps.c.state, StepState.BATCHED))
# Parked time since the oldest open group was admitted or the step was sent; for a task with neither, of the current parking only.
_PARKED_MS = parked_ms(NOW_S) - func.coalesce(
    func.least(_OLDEST_MS.scalar_subquery(), _BATCHED_MS.scalar_subquery()), pool_clocks.c.parked_ms, literal_column("0")
)
_WALL_S = func.extract("epoch", func.now() - func.greatest(tasks.c.updated_at, _SCORED, _REFILLED, _EVALUATED)).cast(Double)
_SECONDS = (_WALL_S - func.greatest(_PARKED_MS, literal_column("0")) / literal_column("1000.0")).cast(Double)


_OF_STALL = ("seconds", "pool", "environment", "family", "open_groups", "is_training", "is_evaluating")


async def stalled_tasks(connection: AsyncConnection, limit_s: float, only: Collection[str] | None = None) -> dict[str, Stall | None]:
    """Tasks without progress for `limit_s` on their pool's clock, or on the wall clock if their pool is parked.

    Tasks that progress but still have a no-progress or parked warning map to None. `only`: restricts the search to these tasks.
    """
    is_waiting = and_(
        tasks.c.state.in_([TaskState.SUBMITTED, TaskState.RUNNING]),
        tasks.c.updated_at < func.now() - func.make_interval(0, 0, 0, 0, 0, 0, limit_s),
    )
    warned = [tasks.c.warnings[name].astext.is_not(None) for name in (TaskWarning.NO_PROGRESS, TaskWarning.PARKED)]
    is_warned = and_(tasks.c.state.in_(LIVE), or_(*warned))
    statement = (
        select(
            tasks.c.id,
            tasks.c.state,
            tasks.c.pool,
            tasks.c.family,
            tasks.c.spec["environment"]["name"].astext.label("environment"),
            _SECONDS.label("seconds"),
            _WALL_S.label("wall_s"),
            pool_clocks.c.parked_since.is_not(None).label("is_parked"),
            select(func.count())
            .where(groups.c.task == tasks.c.id, IN_TRAINING, in_state(groups.c.state, GroupState.OPEN))
            .scalar_subquery()
            .label("open_groups"),
            select(steps.c.task)
            .where(steps.c.task == tasks.c.id, in_state(steps.c.state, StepState.BATCHED))
            .exists()
            .label("is_training"),
            select(evaluations.c.task)
            .where(evaluations.c.task == tasks.c.id, in_state(evaluations.c.state, EvaluationState.RUNNING))
            .exists()
            .label("is_evaluating"),
        )
        .select_from(tasks.outerjoin(pool_clocks, pool_clocks.c.pool == tasks.c.pool))
        .where(or_(is_waiting, is_warned))
    )
    if only is not None:
        statement = statement.where(tasks.c.id.in_(only))
    found: dict[str, Stall | None] = {}
    for row in (await connection.execute(statement)).all():
        is_held_up = row.is_parked and row.seconds < limit_s <= row.wall_s
        is_progressing = (row.seconds < limit_s and not is_held_up) or row.state == TaskState.PAUSED
        as_found = {name: getattr(row, name) for name in _OF_STALL}
        parked_s = row.wall_s if is_held_up else None
        found[row.id] = None if is_progressing else Stall(**as_found, is_accepted=row.state != TaskState.SUBMITTED, parked_s=parked_s)
    return found
