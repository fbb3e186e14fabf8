"""Handles weight updates, the trainer's announcements of trained steps: advances the version, reports the step, and continues or finishes
the task."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import structlog
from pydantic import JsonValue
from sqlalchemy import Integer, Text, cast, func, select, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from common.bus import Delivery
from common.errors import Reject
from common.messages import AdapterRef, BlobRef, CheckpointRef, StoredStep, WeightUpdated, as_json, from_json
from scheduler_svc.base.context import HandlerContext
from scheduler_svc.base.scheduling_policy import SchedulingPolicy
from scheduler_svc.base.sql import Rows, Statement, any_of, given, in_state
from scheduler_svc.base.states import LIVE, StepState, TaskState
from scheduler_svc.base.tables import ledger, steps, tasks
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy.billing.ledger import recorded_tokens
from scheduler_svc.training import evaluations
from scheduler_svc.training.decisions.endings import WINDOW, Failures, reason_to_finish, warnings_of_steps
from scheduler_svc.training.queries.progress import TaskProgress, progress_of
from scheduler_svc.training.queries.steps import StepSummary, finish_steps, measured_steps
from scheduler_svc.training.queries.tasks import TASK_COLUMNS, Task, task_of
from scheduler_svc.training.steps import send_ready_steps
from scheduler_svc.training.task_events import emit_warnings, publish_status
from scheduler_svc.training.termination import end_task

log = structlog.get_logger()


_ANNOUNCED = Statement(
    select(tasks.c.tenant, tasks.c.pool, tasks.c.version, tasks.c.state, steps.c.state.label("step_state"), steps.c.digest)
    .select_from(tasks.outerjoin(steps, (steps.c.task == tasks.c.id) & (steps.c.version == given("from_version", Integer))))
    .where(tasks.c.id == given("of_task"))
)


_made = Rows("made", task=Text, tenant=Text, pool=Text, version=Integer, trained=Text, adapter=Text, checkpoint=Text)
_locked = select(tasks.c.id).where(tasks.c.id == any_of("made_task")).order_by(tasks.c.id).with_for_update().cte("locked")  # in id order
_is_sent = (
    select(steps.c.task)
    .where(steps.c.task == tasks.c.id, steps.c.version == tasks.c.version, in_state(steps.c.state, StepState.BATCHED))
    .where(steps.c.digest == _made.c.trained)
    .exists()
)
_ADVANCE = Statement(
    update(tasks)
    .where(
        tasks.c.id == _locked.c.id,
        tasks.c.id == _made.c.task,
        tasks.c.tenant == _made.c.tenant,
        tasks.c.pool == _made.c.pool,
        tasks.c.version == _made.c.version - 1,
        in_state(tasks.c.state, TaskState.RUNNING, TaskState.PAUSED),
        _is_sent,
    )
    .values(
        version=tasks.c.version + 1,
        adapter=cast(_made.c.adapter, JSONB),
        checkpoint=cast(_made.c.checkpoint, JSONB),
        updated_at=func.now(),
    )
    .returning(*TASK_COLUMNS)
)


async def advance_versions(connection: AsyncConnection, updates: Collection[WeightUpdated]) -> dict[str, Task]:
    """Advance each task to its announced version by compare-and-set; `updates`: at most one per task.

    Returns the advanced tasks by id. All named tasks are locked, including those that do not advance: ended, at another version, or with
    another step sent.
    """
    made = [
        (
            each.task,
            each.tenant,
            each.pool,
            each.version,
            each.trained,
            each.adapter.model_dump_json(),
            each.checkpoint.model_dump_json(),
        )
        for each in updates
    ]
    return {row.id: task_of(row) for row in await _ADVANCE.run(connection, _made.of(made))}


async def announcement(connection: AsyncConnection, task: Task) -> WeightUpdated | None:
    """The trainer's announcement of the task's version, rebuilt from its rows; None at version 0."""
    tokens = (
        select(ledger.c.tokens)
        .where(ledger.c.task == steps.c.task, ledger.c.kind == "trained", ledger.c.number == steps.c.version + 1)
        .scalar_subquery()
    )
    statement = select(steps, func.coalesce(tokens, 0).label("trained_tokens")).where(
        steps.c.task == task.id, steps.c.version == task.version - 1, steps.c.state == StepState.TRAINED
    )
    row = (await connection.execute(statement)).mappings().first()
    if row is None:
        return None
    return WeightUpdated(
        tenant=task.tenant,
        task=task.id,
        pool=task.spec.pool,
        version=task.version,
        adapter=from_json(AdapterRef, row["adapter"]),
        checkpoint=from_json(CheckpointRef, row["checkpoint"]),
        trained=row["digest"],
        batch=from_json(BlobRef, row["batch"]) if row["batch"] else None,
        metrics=row["metrics"],
        trained_tokens=row["trained_tokens"],
        started_s=row["started_at"].timestamp(),
        finished_s=row["finished_at"].timestamp(),
    )


async def handle_weight_updates(context: HandlerContext, deliveries: Sequence[Delivery]) -> None:
    updates = [delivery.read(WeightUpdated) for delivery in deliveries]
    async with context.transaction() as tx:
        advanced = await weights_updated(tx, updates, context.policy)
    if advanced:
        context.collector.enqueue(advanced)


async def weights_updated(tx: Transaction, updates: Sequence[WeightUpdated], policy: SchedulingPolicy) -> list[Task]:
    """Advance versions by compare-and-set: only the first message about a version counts, and only if it is of the step that was sent.

    Returns the advanced tasks, with their states after the step; updates that changed nothing add none. Raises: Reject if an update is of a
    step that was never sent.
    """
    first = {updated.task: updated for updated in reversed(updates)}
    found = await advance_versions(tx.connection, first.values())
    for updated in first.values():
        if updated.task not in found:
            await _require_sent(tx.connection, updated)
            log.info("weight_update_ignored", task=updated.task, version=updated.version)
    advanced = await _report_steps(tx, found, first) if found else []
    await send_ready_steps(tx, [task for task in advanced if task.is_live], policy)
    later = [updated for updated in updates if updated is not first[updated.task]]
    return [*advanced, *(await weights_updated(tx, later, policy) if later else [])]


async def _require_sent(connection: AsyncConnection, updated: WeightUpdated) -> None:
    """Raises: Reject if the update is not of the step at the trainer. Repeated updates, and those of ended tasks, are ignored."""
    found = await _ANNOUNCED.run(connection, {"of_task": updated.task, "from_version": updated.version - 1})
    if not found or found[0].state not in LIVE or updated.version <= found[0].version:
        return
    row, where = found[0], f"the update of task {updated.task} to version {updated.version}"
    if (updated.tenant, updated.pool) != (row.tenant, row.pool):
        raise Reject(f"{where} names tenant '{updated.tenant}' and pool '{updated.pool}', which are not the task's")
    if row.step_state != StepState.BATCHED:
        raise Reject(f"{where} is of no step that is with the trainer; the task has version {row.version}")
    if row.digest != updated.trained:
        raise Reject(f"{where} is of another batch than was sent to the trainer; its digest differs")


async def _report_steps(tx: Transaction, advanced: Mapping[str, Task], updates: Mapping[str, WeightUpdated]) -> list[Task]:
    """Finish the steps, emit their events, and end tasks that are done; returns the tasks with their states afterwards."""
    before = await progress_of(tx.connection, *advanced)
    made = {id: _with_void_metrics(updates[id], before[id].voided, task) for id, task in advanced.items()}
    finished = await finish_steps(tx.connection, list(made.values()))
    measured = await measured_steps(tx.connection, advanced, WINDOW)
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
    """End a task that has used up a budget, or trained and evaluated every step; False if the task continues."""
    stop = task.spec.stop
    tokens = await recorded_tokens(tx.connection, task.id) if stop.tokens is not None else 0
    accepted_at = task.accepted_at if stop.seconds is not None else None
    seconds = ((await tx.connection.execute(select(func.now()))).scalar_one() - accepted_at).total_seconds() if accepted_at else 0.0
    reason = reason_to_finish(task.spec, task.version, tokens=tokens, seconds=seconds)
    if reason is None:
        return await evaluations.finish_if_done(tx, task)
    data: dict[str, JsonValue] = {"version": task.version, "reward": progress.reward, "reason": reason}
    return await end_task(tx, task, TaskState.FINISHED, reason=reason, data=data)


def _with_void_metrics(updated: WeightUpdated, voided: dict[str, int], task: Task) -> WeightUpdated:
    """`updated` with metrics on groups voided since the previous step: their share, and their number by reason."""
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
