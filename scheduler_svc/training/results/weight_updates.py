"""Handles weight updates: advances the task's version, reports the step, and continues or finishes the task."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog
from pydantic import JsonValue

from common.bus import Delivery
from common.errors import Reject
from common.messages import StoredStep, WeightUpdated, as_json
from scheduler_svc.base.context import HandlerContext
from scheduler_svc.base.scheduling_policy import SchedulingPolicy
from scheduler_svc.base.states import TaskState
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy.billing import ledger
from scheduler_svc.training import evaluations
from scheduler_svc.training.decisions.endings import WINDOW, Failures, reason_to_finish, warnings_of_steps
from scheduler_svc.training.dispatch.steps import send_ready_steps
from scheduler_svc.training.queries import announcements, steps, tasks
from scheduler_svc.training.queries.announcements import AnnouncedTask
from scheduler_svc.training.queries.progress import TaskProgress, progress_of
from scheduler_svc.training.queries.steps import StepSummary
from scheduler_svc.training.queries.tasks import Task
from scheduler_svc.training.task_events import emit_warnings, publish_status
from scheduler_svc.training.termination import end_task

log = structlog.get_logger()


async def handle_weight_updates(context: HandlerContext, deliveries: Sequence[Delivery]) -> None:
    updates = [delivery.read(WeightUpdated) for delivery in deliveries]
    async with context.transaction() as tx:
        advanced = await weights_updated(tx, updates, context.policy)
    if advanced:
        context.collector.enqueue(advanced)


async def weights_updated(tx: Transaction, updates: Sequence[WeightUpdated], policy: SchedulingPolicy) -> list[Task]:
    """Advance versions by compare-and-set: only the first message about a version counts, and only one of the step that was sent.

    Returns the tasks as their steps leave them; none for a message that changed nothing. Raises: Reject when one is of no step that was
    sent.
    """
    first = {updated.task: updated for updated in reversed(updates)}
    found = await announcements.advance_versions(tx.connection, first.values())
    for updated in first.values():
        if updated.task not in found:
            _require_sent(updated, await announcements.announced_task(tx.connection, updated))
            log.info("weight_update_ignored", task=updated.task, version=updated.version)
    advanced = await _report_steps(tx, found, first) if found else []
    await send_ready_steps(tx, [task for task in advanced if task.is_live], policy)
    later = [updated for updated in updates if updated is not first[updated.task]]
    return [*advanced, *(await weights_updated(tx, later, policy) if later else [])]


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


async def _report_steps(tx: Transaction, advanced: Mapping[str, Task], updates: Mapping[str, WeightUpdated]) -> list[Task]:
    """Finish the steps and emit their events, then end each task that is done; returns the tasks as that leaves them."""
    before = await progress_of(tx.connection, *advanced)
    made = {id: _with_void_metrics(updates[id], before[id].voided, task) for id, task in advanced.items()}
    finished = await steps.finish_steps(tx.connection, list(made.values()))
    measured = await steps.measured_steps(tx.connection, advanced, WINDOW)
    left: list[Task] = []
    for id, task in sorted(advanced.items()):
        tx.emit_event(task.tenant, id, "step", _step_data(finished[id], made[id], before[id].failures))
        task = await emit_warnings(tx, task, warnings_of_steps(*measured[id]))
        await evaluations.plan(tx.connection, task)
        progress = before[id].after(finished[id])
        if await _finish(tx, task, progress):
            left.append(replace(task, state=TaskState.FINISHED))
        else:
            await publish_status(tx, task, progress)
            left.append(task)
    return left


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


def _with_void_metrics(updated: WeightUpdated, voided: dict[str, int], task: Task) -> WeightUpdated:
    """The update with the share of the groups ended since the previous step that was void, and their number by reason."""
    total = sum(voided.values())
    share = total / (total + task.spec.algorithm.groups_per_step)
    void = {"void_share": share, **{f"void.{reason}": float(count) for reason, count in sorted(voided.items())}}
    return updated.model_copy(update={"metrics": updated.metrics | void})


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
