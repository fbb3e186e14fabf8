"""Query on the progress of a task, for its status and its steps: one statement."""

from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Column, ScalarSelect, and_, case, func, literal_column, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import UNSUPPORTED
from scheduler_svc.decisions.task_end import Failures
from scheduler_svc.store.queries.sql.parameters import given, in_state
from scheduler_svc.store.queries.sql.statement import Statement
from scheduler_svc.store.queries.steps import StepSummary
from scheduler_svc.store.states import GroupState, StepState, VoidReason
from scheduler_svc.store.tables import dead_letters, groups, steps, tasks

LATEST_GROUPS = 100
"""Number of a task's latest groups in which failures are counted, also by the view `task_status`."""


@dataclass(frozen=True)
class TaskProgress:
    """Progress of one task."""

    reward: float | None
    """Mean reward of the latest trained step, None before the first; `staleness` likewise."""
    staleness: float | None
    sampled_tokens: int
    """Tokens sampled for its ended groups."""
    dead_letters: int
    failures: Failures
    """Failures among the latest `LATEST_GROUPS` groups admitted."""
    voided: dict[str, int]
    """Groups that ended void since the latest trained step, by reason."""

    def after(self, step: StepSummary) -> "TaskProgress":
        """This progress with `step` as the latest trained step."""
        return replace(self, reward=step.reward, staleness=step.staleness_mean)


def _of_latest_step(column: Column[Any]) -> ScalarSelect[Any]:
    trained = select(column).where(steps.c.task == given("of_task"), steps.c.state == StepState.TRAINED)
    return trained.order_by(steps.c.version.desc()).limit(1).scalar_subquery()


_latest = (
    select(groups.c.state, groups.c.void_reason, groups.c.detail)
    .where(groups.c.task == given("of_task"))
    .order_by(groups.c.number.desc())
    .limit(LATEST_GROUPS)
    .subquery()
)
_failed = in_state(_latest.c.void_reason, VoidReason.FAILED, VoidReason.DEADLINE)
_unsupported = and_(_failed, _latest.c.detail.startswith(UNSUPPORTED))
_scored = in_state(_latest.c.state, GroupState.READY, GroupState.BATCHED, GroupState.TRAINED)
_since = func.coalesce(_of_latest_step(steps.c.trained_at), literal_column("'-infinity'::timestamptz"))
_voided = (
    select(groups.c.void_reason, func.count().label("voided"))
    .where(groups.c.task == given("of_task"), in_state(groups.c.state, GroupState.VOID), groups.c.ended_at > _since)
    .group_by(groups.c.void_reason)
    .subquery("voided")
)
_PROGRESS = Statement(
    select(
        _of_latest_step(steps.c.reward),
        _of_latest_step(steps.c.staleness_mean),
        select(tasks.c.sampled_tokens).where(tasks.c.id == given("of_task")).scalar_subquery(),
        select(func.count()).select_from(dead_letters).where(dead_letters.c.task == given("of_task")).scalar_subquery(),
        func.count(case((_failed, 1))),
        func.count(case((or_(_failed, _scored), 1))),
        func.count(case((_unsupported, 1))),
        select(func.jsonb_object_agg(_voided.c.void_reason, _voided.c.voided)).scalar_subquery(),
    ).select_from(_latest)
)


async def progress_of(connection: AsyncConnection, task: str) -> TaskProgress:
    """Progress as the transaction sees it."""
    reward, staleness, tokens, letters, failures, ended, unsupported, voided = (await _PROGRESS.run(connection, {"of_task": task}))[0]
    return TaskProgress(reward, staleness, tokens, letters, Failures(failures, ended, unsupported), voided or {})
