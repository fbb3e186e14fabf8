"""Handles weight updates: advances the task's version, reports the step, and continues or finishes the task."""

from collections.abc import Sequence

import structlog
from pydantic import JsonValue

from common.bus import Delivery
from common.errors import Reject
from common.messages import StoredStep, WeightUpdated, as_json
from scheduler_svc.decisions.endings.task_end import Failures, reason_to_finish
from scheduler_svc.decisions.endings.task_warnings import WINDOW, warnings_of_steps
from scheduler_svc.decisions.sharing.scheduling_policy import SchedulingPolicy
from scheduler_svc.dispatch.steps import send_ready_steps
from scheduler_svc.handlers.context import HandlerContext
from scheduler_svc.lifecycle import evaluations
from scheduler_svc.lifecycle.task_events import emit_warnings, publish_status
from scheduler_svc.lifecycle.termination import end_task
from scheduler_svc.store.queries.tenancy import ledger
from scheduler_svc.store.queries.training import announcements, steps, tasks
from scheduler_svc.store.queries.training.announcements import AnnouncedTask
from scheduler_svc.store.queries.training.progress import TaskProgress, progress_of
from scheduler_svc.store.queries.training.steps import StepSummary
from scheduler_svc.store.queries.training.tasks import Task
from scheduler_svc.store.states import TaskState
from scheduler_svc.store.transaction import Transaction

log = structlog.get_logger()


async def handle_weight_updates(context: HandlerContext, deliveries: Sequence[Delivery]) -> None:
    async with context.transaction() as tx:
        ordered = sorted(deliveries, key=lambda delivery: delivery.subject)  # tasks are locked in one order
        updated = [await weight_updated(tx, delivery.read(WeightUpdated), context.policy) for delivery in ordered]
    if advanced := [task for task in updated if task is not None]:
        context.collector.enqueue(advanced)


async def weight_updated(tx: Transaction, updated: WeightUpdated, policy: SchedulingPolicy) -> Task | None:
    """Advance the version by compare-and-set: only the first message about a version counts, and only one of the step that was sent.

    Returns the task as the step leaves it; None when the message changed nothing. Raises: Reject when it is of no step that was sent.
    """
    _require_sent(updated, await announcements.announced_task(tx.connection, updated))
    task = await tasks.advance_version(tx.connection, updated.task, updated.version - 1, updated.adapter, updated.checkpoint)
    if task is None:
        log.info("weight_update_ignored", task=updated.task, version=updated.version)
        return None
    progress = await _report_step(tx, task, updated)
    task = await emit_warnings(tx, task, warnings_of_steps(*await steps.measured_steps(tx.connection, task.id, WINDOW)))
    await evaluations.plan(tx.connection, task)
    if await _finish(tx, task, progress):
        return (await tasks.lock_tasks(tx.connection, [updated.task]))[0]
    await publish_status(tx, task, progress)
    await send_ready_steps(tx, [task], policy)
    return task


def _require_sent(updated: WeightUpdated, found: AnnouncedTask | None) -> None:
    """Raises: Reject when no trainer was asked for this version. Repetitions, and messages about tasks that have ended, change nothing."""
    if found is None or not found.is_live or updated.version <= found.version:
        return
    where = f"the update of task {updated.task} to version {updated.version}"
    if (updated.tenant, updated.pool) != (found.tenant, found.pool):
        raise Reject(f"{where} names tenant '{updated.tenant}' and pool '{updated.pool}', which are not the task's")
    if found.step is None:
        raise Reject(f"{where} is of no step that is with the trainer; the task has version {found.version}")
    if not found.step.is_made_by(updated):
        raise Reject(f"{where} is of another batch than was sent to the trainer; its digest differs")


async def _report_step(tx: Transaction, task: Task, updated: WeightUpdated) -> TaskProgress:
    """Finish the step and emit its event; returns the task's progress with it."""
    progress = await progress_of(tx.connection, task.id)
    updated = updated.model_copy(update={"metrics": updated.metrics | _void_metrics(progress.voided, task)})
    step = await steps.finish_step(tx.connection, updated)
    tx.emit_event(task.tenant, task.id, "step", _step_data(step, updated, progress.failures))
    return progress.after(step)


async def _finish(tx: Transaction, task: Task, progress: TaskProgress) -> bool:
    """End a task that has used up a budget, or trained and evaluated every step; False when it continues."""
    stop = task.spec.stop
    tokens = await ledger.recorded_tokens(tx.connection, task.id) if stop.tokens is not None else 0
    accepted_at = task.accepted_at if stop.seconds is not None else None
    seconds = (await tasks.now(tx.connection) - accepted_at).total_seconds() if accepted_at else 0.0
    reason = reason_to_finish(task.spec, task.version, tokens=tokens, seconds=seconds)
    if reason is None:
        return await evaluations.finish_if_done(tx, task)
    data: dict[str, JsonValue] = {"version": task.version, "reward": progress.reward, "reason": reason}
    return await end_task(tx, task, TaskState.FINISHED, reason=reason, data=data)


def _void_metrics(voided: dict[str, int], task: Task) -> dict[str, float]:
    """Share of the groups ended since the previous step that was void, and their number by reason."""
    total = sum(voided.values())
    share = total / (total + task.spec.algorithm.groups_per_step)
    return {"void_share": share, **{f"void.{reason}": float(count) for reason, count in sorted(voided.items())}}


def _step_data(step: StepSummary, updated: WeightUpdated, failures: Failures) -> dict[str, JsonValue]:
    return {
        "version": updated.version,
        "reward": step.reward,
        "staleness_mean": step.staleness_mean,
        "staleness_max": step.staleness_max,
        "failed_share": failures.share,
        "sampled_tokens": step.sampled_tokens,
        "trained_tokens": updated.trained_tokens,
        "adapter": updated.adapter.blob.name,
        "stored": as_json(StoredStep(adapter=updated.adapter, checkpoint=updated.checkpoint, batch=updated.batch)),
        "metrics": dict(updated.metrics),
        "times": {
            "first_admitted_s": step.first_admitted_at.timestamp(),
            "first_sampled_s": step.first_scored_at.timestamp(),
            "last_sampled_s": step.last_scored_at.timestamp(),
            "batched_s": step.batched_at.timestamp(),
            "started_s": updated.started_s,
            "trained_s": updated.finished_s,
        },
    }
