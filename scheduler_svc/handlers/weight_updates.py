"""Handles weight updates: advances the task's version, reports the step, and continues or finishes the task."""

import structlog
from pydantic import JsonValue
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import StoredStep, WeightUpdated, as_json
from scheduler_svc.decisions.scheduling_policy import SchedulingPolicy
from scheduler_svc.decisions.task_warnings import WINDOW, warnings_of_steps
from scheduler_svc.dispatch.steps import send_ready_steps
from scheduler_svc.lifecycle import evaluations
from scheduler_svc.lifecycle.task_events import announce, announce_warnings, publish_status
from scheduler_svc.lifecycle.termination import end_task
from scheduler_svc.store.queries import ledger, steps, tasks
from scheduler_svc.store.queries.progress import Failures, progress_of
from scheduler_svc.store.queries.steps import StepSummary
from scheduler_svc.store.queries.tasks import Task
from scheduler_svc.store.states import TaskState

log = structlog.get_logger()


async def weight_updated(connection: AsyncConnection, updated: WeightUpdated, policy: SchedulingPolicy) -> Task | None:
    """Advance the version by compare-and-set; the first message about a version counts, and only that.

    Returns the task as the step leaves it; None when the message changed nothing.
    """
    task = await tasks.advance_version(connection, updated.task, updated.version - 1, updated.adapter, updated.checkpoint)
    if task is None:
        log.info("weight_update_ignored", task=updated.task, version=updated.version)
        return None
    progress = await progress_of(connection, task.id)
    updated = updated.model_copy(update={"metrics": updated.metrics | _void_metrics(progress.voided, task)})
    step = await steps.finish_step(connection, updated)
    progress = progress.after(step)
    announce(connection, task.tenant, task.id, "step", _step_data(step, updated, progress.failures))
    task = await announce_warnings(connection, task, warnings_of_steps(*await steps.measured_steps(connection, task.id, WINDOW)))
    await evaluations.plan(connection, task)
    exhausted = await exhausted_budget(connection, task)
    if exhausted is not None:
        data: dict[str, JsonValue] = {"version": task.version, "reward": step.reward, "reason": exhausted}
        await end_task(connection, task, TaskState.FINISHED, reason=exhausted, data=data)
        return (await tasks.lock_tasks(connection, [updated.task]))[0]
    if await evaluations.finish_if_done(connection, task):
        return (await tasks.lock_tasks(connection, [updated.task]))[0]
    await publish_status(connection, task, progress)
    await send_ready_steps(connection, [task], policy)
    return task


def _void_metrics(voided: dict[str, int], task: Task) -> dict[str, float]:
    """Of the groups that ended since the step before: the share that was void, and how many by reason."""
    total = sum(voided.values())
    share = total / (total + task.spec.algorithm.groups_per_step)
    return {"void_share": share, **{f"void.{reason}": float(count) for reason, count in sorted(voided.items())}}


async def exhausted_budget(connection: AsyncConnection, task: Task) -> str | None:
    """Which budget of the task is used up before its last step; None while there is some left."""
    stop = task.spec.stop
    if task.version >= task.spec.steps:
        return None
    if stop.tokens is not None and (spent := await ledger.booked_tokens(connection, task.id)) >= stop.tokens:
        return f"stop.tokens: {spent} tokens are spent, the budget is {stop.tokens}"
    if stop.seconds is not None and task.accepted_at is not None:
        seconds = (await tasks.now(connection) - task.accepted_at).total_seconds()
        if seconds >= stop.seconds:
            return f"stop.seconds: {seconds:.0f} s since the task was accepted, the budget is {stop.seconds:g} s"
    return None


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
