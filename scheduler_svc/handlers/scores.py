"""Handles scores: settles members, then their groups, then sends complete steps to the trainer."""

from collections.abc import Sequence

from pydantic import ValidationError
from sqlalchemy.ext.asyncio import AsyncConnection

from common.bus import Delivery
from common.errors import Reject
from common.messages import Settlement
from common.streams import SETTLEMENT_HEADER
from scheduler_svc.decisions.evaluation_plan import is_group
from scheduler_svc.decisions.scheduling_policy import SchedulingPolicy
from scheduler_svc.dispatch.steps import send_ready_steps
from scheduler_svc.lifecycle import evaluations
from scheduler_svc.lifecycle.accounting import settle_accounts
from scheduler_svc.lifecycle.termination import void_and_refund
from scheduler_svc.store.queries import groups, shares, tasks
from scheduler_svc.store.queries.evaluations import Outcome
from scheduler_svc.store.queries.groups import DecidedGroup, EndedGroup, ScoredMember
from scheduler_svc.store.queries.sql.parameters import GroupKey
from scheduler_svc.store.queries.tasks import Task
from scheduler_svc.store.states import VoidReason


async def trajectories_scored(connection: AsyncConnection, deliveries: Sequence[Delivery], policy: SchedulingPolicy) -> None:
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
        await shares.reset_failure_streak(connection, {task for task, _ in equal})
    await _trained_next(connection, by_id, [found.group for found in complete if found.group.key not in equal], policy)


async def _trained_next(
    connection: AsyncConnection, by_id: dict[str, Task], complete: Sequence[EndedGroup], policy: SchedulingPolicy
) -> None:
    """Groups that are complete become ready, and steps that are ready are sent."""
    marked = await groups.mark_ready(connection, [group.key for group in complete]) if complete else set[GroupKey]()
    ready = [group for group in complete if group.key in marked]  # all, unless what failed has ended their task
    if not ready:
        return
    await settle_accounts(connection, by_id, ready)
    await shares.update_token_estimate(connection, _mean_tokens(ready))
    await send_ready_steps(connection, [by_id[task] for task in sorted({group.task for group in ready})], policy)


def _mean_tokens(ended: Sequence[EndedGroup]) -> dict[str, float]:
    """That a group took, by task."""
    tokens: dict[str, list[int]] = {}
    for group in ended:
        tokens.setdefault(group.task, []).append(group.prompt_tokens + group.sampled_tokens)
    return {task: sum(found) / len(found) for task, found in tokens.items()}


async def void_overdue(connection: AsyncConnection, task_id: str, policy: SchedulingPolicy, now_s: float, *, calm_s: float) -> None:
    """Void open groups of a task past their deadline, whatever became of whoever worked on them.

    It is `now_s` on NATS's clock. The task is excused where its groups had longer than the `calm_s` that nothing was disturbed
    (`maintenance/stability.py`).
    """
    by_id = {task.id: task for task in await tasks.lock_tasks(connection, [task_id])}
    overdue = await groups.overdue_groups(connection, now_s, task_id)
    details = {key: f"group {key[1]} was not finished before limits.episode_timeout_s" for key in overdue}
    excused = {task.id for task in by_id.values() if calm_s < task.spec.limits.episode_timeout_s}
    await void_and_refund(connection, by_id, overdue, VoidReason.DEADLINE, details, excused)
    await send_ready_steps(connection, await tasks.lock_tasks(connection, [task_id]), policy)


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
