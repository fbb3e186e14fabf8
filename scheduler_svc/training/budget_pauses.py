"""Budgets between admissions: warns tenants, pauses tasks that cannot open another group, and resumes them once they can.

Admission alone enforces budgets (`tenancy/decisions/budgets.py`); this module makes the effect visible. A task is paused if its next group
does not fit and no group or step of its tenant is in flight, so that waiting would change nothing.
"""

import structlog
from pydantic import JsonValue

from scheduler_svc.base.scheduling_policy import SchedulingPolicy
from scheduler_svc.base.states import TaskState
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy.billing import budgets
from scheduler_svc.tenancy.billing.budgets import BudgetedTask
from scheduler_svc.tenancy.decisions.budgets import Budget
from scheduler_svc.training.accounting import join_fair_queue
from scheduler_svc.training.queries import tasks
from scheduler_svc.training.steps import send_ready_steps
from scheduler_svc.training.task_events import publish_status

log = structlog.get_logger()


async def enforce_budgets(tx: Transaction, policy: SchedulingPolicy) -> None:
    """Report, pause and resume by all tenants' budgets. Costs one small query if no tenant has a budget."""
    if not await budgets.there_are_any(tx.connection):
        return
    await budgets.begin_periods(tx.connection)
    standing = await budgets.standings(tx.connection)
    for one in standing.found:
        await _report(tx, one, "nearly" if one.is_nearly_spent else "")
    purses = standing.purses
    for task in await budgets.waiting_tasks(tx.connection, purses.keys()):
        purse = purses.get(task.tenant)
        objection = purse.objection(task.pool, task.bound, evaluates=task.evaluates) if purse else None
        if task.is_paused and objection is None:
            await _resume(tx, task, policy)
        elif not task.is_paused and objection is not None and not objection[0].is_moving:
            await _pause(tx, task, objection[1])
            await _report(tx, objection[0], "used_up")


async def _report(tx: Transaction, budget: Budget, reported: str) -> None:
    """Emit an event if the budget reaches a higher level than last reported; a raised budget is reported afresh."""
    rank = ("", "nearly", "used_up")
    if rank.index(reported) <= rank.index(budget.reported) or not await budgets.report(tx.connection, budget, reported):
        return
    tx.emit_event(budget.tenant, "none", "budget", {"reported": reported} | fields_of(budget))
    log.info("budget_reported", tenant=budget.tenant, reported=reported, period=budget.period, unit=budget.unit)


def fields_of(budget: Budget) -> dict[str, JsonValue]:
    """Fields of a budget for an event; amounts as exact decimal text."""
    amounts = {name: format(getattr(budget, name), "f") for name in ("amount", "spent", "reserved")}
    return {"period": budget.period, "unit": budget.unit, **amounts}


async def _pause(tx: Transaction, task: BudgetedTask, reason: str) -> None:
    await tasks.lock_tasks(tx.connection, [task.task])
    if await tasks.transition_task(tx.connection, task.task, [TaskState.RUNNING], TaskState.PAUSED, reason=reason, over_budget=True):
        tx.emit_event(task.tenant, task.task, "paused", {"reason": reason})
        await publish_status(tx, task.task)


async def _resume(tx: Transaction, task: BudgetedTask, policy: SchedulingPolicy) -> None:
    [locked] = await tasks.lock_tasks(tx.connection, [task.task])
    if not await budgets.leave_paused(tx.connection, task.task):  # its owner has ended, resumed or paused the task meanwhile
        return
    if not await tasks.transition_task(tx.connection, task.task, [TaskState.PAUSED], TaskState.RUNNING):
        return
    await join_fair_queue(tx.connection, locked)
    tx.emit_event(task.tenant, task.task, "resumed", {"reason": "the budget allows more"})
    await publish_status(tx, task.task)
    await send_ready_steps(tx, await tasks.lock_tasks(tx.connection, [task.task]), policy)
