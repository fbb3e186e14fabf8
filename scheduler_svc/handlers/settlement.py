"""What came back: environments checked, trajectories scored, weights updated."""

from collections.abc import Sequence

import structlog
from pydantic import JsonValue, ValidationError
from sqlalchemy.ext.asyncio import AsyncConnection

from common.bus import Delivery
from common.errors import Reject
from common.messages import EnvironmentChecked, Settlement, StoredStep, WeightUpdated, as_json
from common.streams import SETTLEMENT_HEADER
from scheduler_svc.decisions.evaluation_plan import is_group
from scheduler_svc.decisions.scheduling_policy import Policy
from scheduler_svc.decisions.task_warnings import WINDOW, warnings_of_steps
from scheduler_svc.dispatch.dispatch import batch, join_fair_queue
from scheduler_svc.lifecycle import evaluations
from scheduler_svc.lifecycle.endings import end_task, settle_accounts, void_and_refund
from scheduler_svc.lifecycle.task_events import announce, announce_warnings, publish_status
from scheduler_svc.store.queries import groups, ledger, steps, tasks
from scheduler_svc.store.queries.evaluations import Outcome
from scheduler_svc.store.queries.groups import DecidedGroup, EndedGroup, ScoredMember
from scheduler_svc.store.queries.progress import Failures, progress_of
from scheduler_svc.store.queries.sql.parameters import GroupKey
from scheduler_svc.store.queries.steps import StepSummary
from scheduler_svc.store.queries.tasks import Task
from scheduler_svc.store.states import TaskState, VoidReason

log = structlog.get_logger()


async def environment_checked(connection: AsyncConnection, answer: EnvironmentChecked) -> None:
    """Start the task, or reject it with the environment's objection."""
    locked = await tasks.lock_tasks(connection, [answer.task])
    if not locked or locked[0].state != TaskState.SUBMITTED:
        return
    task = locked[0]
    if answer.objection is not None:
        await end_task(
            connection, task, TaskState.REJECTED, reason=answer.objection, data={"reasons": [f"environment: {answer.objection}"]}
        )
        return
    await join_fair_queue(connection, task)
    await tasks.transition_task(connection, task.id, [TaskState.SUBMITTED], TaskState.RUNNING)
    await evaluations.plan(connection, task)
    announce(connection, task.tenant, task.id, "accepted")
    await publish_status(connection, task.id)


async def trajectories_scored(connection: AsyncConnection, deliveries: Sequence[Delivery], policy: Policy) -> None:
    """Settle members, then their groups, then send what is complete to the trainer.

    Raises: Reject when a message has no settlement header, or a malformed one.
    """
    outcomes = [outcome for delivery in deliveries for outcome in _outcomes(delivery)]
    by_id = {task.id: task for task in await tasks.lock_tasks(connection, {outcome.task for outcome in outcomes})}
    outcomes = [outcome for outcome in outcomes if outcome.task in by_id]
    evaluated = [Outcome(outcome.task, outcome.group, outcome.member) for outcome in outcomes if is_group(outcome.group)]
    await evaluations.settle(connection, by_id, evaluated)
    outcomes = [outcome for outcome in outcomes if not is_group(outcome.group)]
    if not outcomes:
        return
    await groups.settle_members(connection, outcomes)
    decided = await groups.groups_to_end(connection, {(outcome.task, outcome.group) for outcome in outcomes})
    failed = {found.group.key: found.failure for found in decided if found.failure is not None}
    complete = [found for found in decided if found.failure is None]
    if failed:
        succeeded = {found.group.task for found in complete}  # in the same list, so perhaps between what failed
        await void_and_refund(connection, by_id, list(failed), VoidReason.FAILED, failed, not_in_a_row=succeeded)
    equal = await refillable_groups(connection, by_id, [found for found in complete if found.equal])
    if equal:
        await void_and_refund(connection, by_id, equal, VoidReason.ZERO_VARIANCE, {})
        await tasks.reset_failure_streak(connection, {task for task, _ in equal})
    await _trained_next(connection, by_id, [found.group for found in complete if found.group.key not in equal], policy)


async def _trained_next(connection: AsyncConnection, by_id: dict[str, Task], complete: Sequence[EndedGroup], policy: Policy) -> None:
    """Groups that are complete become ready, and steps that are ready are sent."""
    marked = await groups.mark_ready(connection, [group.key for group in complete]) if complete else set[GroupKey]()
    ready = [group for group in complete if group.key in marked]  # all, unless what failed has ended their task
    if not ready:
        return
    await settle_accounts(connection, by_id, ready)
    await tasks.update_token_estimate(connection, _mean_tokens(ready))
    await batch(connection, [by_id[task] for task in sorted({group.task for group in ready})], policy)


def _mean_tokens(ended: Sequence[EndedGroup]) -> dict[str, float]:
    """That a group took, by task."""
    tokens: dict[str, list[int]] = {}
    for group in ended:
        tokens.setdefault(group.task, []).append(group.prompt_tokens + group.sampled_tokens)
    return {task: sum(found) / len(found) for task, found in tokens.items()}


async def void_overdue(connection: AsyncConnection, task_id: str, policy: Policy, now_s: float, *, calm_s: float) -> None:
    """Void open groups of a task past their deadline, whatever became of whoever worked on them.

    It is `now_s` on NATS's clock. The task is excused where its groups had longer than the `calm_s` that nothing was disturbed
    (`maintenance/stability.py`).
    """
    by_id = {task.id: task for task in await tasks.lock_tasks(connection, [task_id])}
    overdue = await groups.overdue_groups(connection, now_s, task_id)
    details = {key: f"group {key[1]} was not finished before limits.episode_timeout_s" for key in overdue}
    excused = {task.id for task in by_id.values() if calm_s < task.spec.limits.episode_timeout_s}
    await void_and_refund(connection, by_id, overdue, VoidReason.DEADLINE, details, excused)
    await batch(connection, await tasks.lock_tasks(connection, [task_id]), policy)


async def refillable_groups(connection: AsyncConnection, by_id: dict[str, Task], equal: Sequence[DecidedGroup]) -> list[GroupKey]:
    """Those of the complete groups `equal`, whose members all earned the same, that are sampled anew, as far as their tasks'
    `max_refills` go: for each version that samples so many. Beyond that they are trained as they are, so a task that always
    succeeds, or never, still ends."""
    equal = [found for found in equal if by_id[found.group.task].spec.algorithm.max_refills]
    if not equal:
        return []
    spent = await groups.refills_by_version(connection, {(found.group.task, found.version) for found in equal})
    refilled: list[GroupKey] = []
    for found in equal:
        task, used = found.group.task, spent.get((found.group.task, found.version), 0)
        if used < by_id[task].spec.algorithm.max_refills:
            spent[(task, found.version)] = used + 1
            refilled.append(found.group.key)
    return refilled


def _outcomes(delivery: Delivery) -> list[ScoredMember]:
    header = delivery.headers.get(SETTLEMENT_HEADER)
    if header is None:
        raise Reject(f"{delivery.subject} has no {SETTLEMENT_HEADER} header")
    try:
        settlement = Settlement.model_validate_json(header)
    except ValidationError as error:
        raise Reject(f"{delivery.subject}: malformed {SETTLEMENT_HEADER} header: {error.errors()[0]['msg']}") from None
    return [ScoredMember(settlement.task, settlement.group, delivery.sequence, member) for member in settlement.members]


async def weight_updated(connection: AsyncConnection, updated: WeightUpdated, policy: Policy) -> Task | None:
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
    await batch(connection, [task], policy)
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
