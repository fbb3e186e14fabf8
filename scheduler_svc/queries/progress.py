"""How far a task has come, as its status tells: one statement."""

from dataclasses import dataclass

from sqlalchemy import Column, ScalarSelect, case, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.states import GroupState, StepState, VoidReason
from scheduler_svc.tables import dead_letters, groups, ledger, steps

LATEST_GROUPS = 100
"""Of a task, among which the share that failed is counted; the view `task_status` counts among as many."""


@dataclass(frozen=True)
class Failures:
    """How many of a task's latest groups failed."""

    failed: int
    ended: int
    """Those that were scored or failed: neither under way, nor void for another reason."""

    @property
    def share(self) -> float:
        return self.failed / self.ended if self.ended else 0.0


@dataclass(frozen=True)
class Progress:
    """Of one task."""

    reward: float | None
    """Mean of the latest trained step, as is `staleness`; None before the first."""
    staleness: float | None
    sampled_tokens: int
    """For its ended groups."""
    dead_letters: int
    failures: Failures
    """Among the latest `LATEST_GROUPS` groups admitted."""


async def progress_of(connection: AsyncConnection, task: str) -> Progress:
    """As the transaction leaves it."""
    latest = (
        select(groups.c.state, groups.c.void_reason)
        .where(groups.c.task == task)
        .order_by(groups.c.number.desc())
        .limit(LATEST_GROUPS)
        .subquery()
    )
    failed = latest.c.void_reason.in_((VoidReason.FAILED, VoidReason.DEADLINE))
    scored = latest.c.state.in_((GroupState.READY, GroupState.BATCHED, GroupState.TRAINED))
    statement = select(
        _of_latest_step(task, steps.c.reward),
        _of_latest_step(task, steps.c.staleness_mean),
        select(func.coalesce(func.sum(ledger.c.tokens), 0)).where(ledger.c.task == task, ledger.c.kind == "sampled").scalar_subquery(),
        select(func.count()).select_from(dead_letters).where(dead_letters.c.task == task).scalar_subquery(),
        func.count(case((failed, 1))),
        func.count(case((or_(failed, scored), 1))),
    ).select_from(latest)
    reward, staleness, tokens, letters, failures, ended = (await connection.execute(statement)).one()
    return Progress(reward, staleness, int(tokens), letters, Failures(failures, ended))


def _of_latest_step(task: str, column: Column[float]) -> ScalarSelect[float]:
    trained = select(column).where(steps.c.task == task, steps.c.state == StepState.TRAINED)
    return trained.order_by(steps.c.version.desc()).limit(1).scalar_subquery()
