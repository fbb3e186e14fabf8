"""Handles scores: settles members, then their groups, then sends complete steps to the trainer."""

import math
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy.ext.asyncio import AsyncConnection

from common.bus import Delivery
from common.errors import Reject
from common.message_consistency import settlement_in
from common.shaping import has_equal_rewards
from scheduler_svc.base.context import HandlerContext
from scheduler_svc.base.scheduling_policy import SchedulingPolicy
from scheduler_svc.base.sql import GroupKey
from scheduler_svc.base.states import VoidReason
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy import shares
from scheduler_svc.training import evaluations
from scheduler_svc.training.accounting import settle_accounts
from scheduler_svc.training.decisions.evaluation import is_group
from scheduler_svc.training.decisions.pool_load import StableFor
from scheduler_svc.training.queries import deadlines, groups, members, tasks
from scheduler_svc.training.queries.groups import DecidedGroup, EndedGroup
from scheduler_svc.training.queries.members import ScoredMember
from scheduler_svc.training.queries.tasks import Task
from scheduler_svc.training.steps import send_ready_steps
from scheduler_svc.training.termination import void_and_refund


async def handle_scores(context: HandlerContext, deliveries: Sequence[Delivery]) -> None:
    async with context.transaction() as tx:
        await trajectories_scored(tx, deliveries, context.policy)


async def trajectories_scored(tx: Transaction, deliveries: Sequence[Delivery], policy: SchedulingPolicy) -> None:
    """Settle members, then their groups, then send complete steps to the trainer.

    Raises: Reject if a message has no settlement header, a malformed one, or one with another version than its group's.
    """
    outcomes = [outcome for delivery in deliveries for outcome in _outcomes(delivery)]
    by_id = {task.id: task for task in await tasks.lock_tasks(tx.connection, {outcome.task for outcome in outcomes})}
    outcomes = [_within_deadline(outcome, by_id[outcome.task]) for outcome in outcomes if outcome.task in by_id]
    await _require_versions(tx.connection, outcomes)
    await evaluations.settle(tx, by_id, [outcome for outcome in outcomes if is_group(outcome.group)])
    outcomes = [outcome for outcome in outcomes if not is_group(outcome.group)]
    if not outcomes:
        return
    await members.settle_members(tx.connection, outcomes)
    decided = await groups.groups_to_end(tx.connection, {(outcome.task, outcome.group) for outcome in outcomes})
    failed = {found.group.key: found.failure for found in decided if found.failure is not None}
    complete = [found for found in decided if found.failure is None]
    if failed:
        succeeded = {found.group.task for found in complete}  # in the same batch, so possibly between the failed groups
        await void_and_refund(tx, by_id, list(failed), VoidReason.FAILED, failed, not_in_a_row=succeeded)
    equal = await refillable_groups(tx.connection, by_id, complete)
    if equal:
        await void_and_refund(tx, by_id, equal, VoidReason.ZERO_VARIANCE, {})
        await shares.reset_failure_streak(tx.connection, {task for task, _ in equal})
    await _make_ready(tx, by_id, [found.group for found in complete if found.group.key not in equal], policy)


async def _make_ready(tx: Transaction, by_id: dict[str, Task], complete: Sequence[EndedGroup], policy: SchedulingPolicy) -> None:
    """Mark complete groups as ready, settle their accounts, and send the steps that they complete."""
    marked = await groups.mark_ready(tx.connection, [group.key for group in complete]) if complete else set[GroupKey]()
    ready = [group for group in complete if group.key in marked]  # all, unless failed groups have ended their task
    if not ready:
        return
    await settle_accounts(tx.connection, by_id, ready)
    await shares.update_token_estimate(tx.connection, _mean_tokens(ready))
    await send_ready_steps(tx, [by_id[task] for task in sorted({group.task for group in ready})], policy)


def _mean_tokens(ended: Sequence[EndedGroup]) -> dict[str, float]:
    """Mean tokens per group, by task."""
    tokens: dict[str, list[int]] = {}
    for group in ended:
        tokens.setdefault(group.task, []).append(group.tokens)
    return {task: sum(found) / len(found) for task, found in tokens.items()}


async def void_overdue(tx: Transaction, task_id: str, policy: SchedulingPolicy, now_s: float, *, stable_for_s: StableFor) -> None:
    """Void a task's open groups past their deadlines, even if a replica still works on them. `now_s`: NATS's clock.

    `stable_for_s`: seconds since the last disturbance, by pool (`upkeep/stalls.py`). If the disturbance is more recent than the
    groups' timeout, the overdue groups do not count as the task's failures.
    """
    by_id = {task.id: task for task in await tasks.lock_tasks(tx.connection, [task_id])}
    overdue = await deadlines.overdue_groups(tx.connection, now_s, task_id)
    details = {key: f"group {key[1]} was not finished before limits.episode_timeout_s" for key in overdue}
    excused = {task.id for task in by_id.values() if stable_for_s(task.spec.pool) < task.spec.limits.episode_timeout_s}
    await void_and_refund(tx, by_id, overdue, VoidReason.DEADLINE, details, excused)
    await send_ready_steps(tx, await tasks.lock_tasks(tx.connection, [task_id]), policy)


async def refillable_groups(connection: AsyncConnection, by_id: dict[str, Task], complete: Sequence[DecidedGroup]) -> list[GroupKey]:
    """Complete groups to refill: groups whose members' rewards are equal after shaping.

    At most `max_refills` groups of a sampling version are refilled. Further groups are trained unchanged, so that a task that always
    succeeds, or always fails, still ends.
    """
    asked = [found for found in complete if by_id[found.group.task].spec.algorithm.max_refills]
    if not asked:
        return []
    attempts = await members.scored_attempts(connection, [found.group.key for found in asked])
    equal = [found for found in asked if has_equal_rewards(attempts[found.group.key], by_id[found.group.task].spec)]
    if not equal:
        return []
    spent = await groups.refills_by_version(connection, {(found.group.task, found.group.version) for found in equal})
    refilled: list[GroupKey] = []
    for found in equal:
        task, used = found.group.task, spent.get((found.group.task, found.group.version), 0)
        if used < by_id[task].spec.algorithm.max_refills:
            spent[(task, found.group.version)] = used + 1
            refilled.append(found.group.key)
    return refilled


def _outcomes(delivery: Delivery) -> list[ScoredMember]:
    settlement = settlement_in(delivery.subject, delivery.headers)
    about = settlement.task, settlement.group, delivery.sequence
    return [ScoredMember(*about, member, settlement.version) for member in settlement.members]


def _within_deadline(outcome: ScoredMember, task: Task) -> ScoredMember:
    """`outcome` with its environment time capped at the maximum that budgets reserve; the excess is not billed."""
    most = math.ceil(task.spec.limits.episode_timeout_s * 1000)
    if outcome.member.env_ms <= most:
        return outcome
    return replace(outcome, member=outcome.member.model_copy(update={"env_ms": most}))


async def _require_versions(connection: AsyncConnection, outcomes: Sequence[ScoredMember]) -> None:
    """Raises: Reject if a score names another version than its group's. Scores of unknown or closed groups are ignored."""
    said = {(outcome.task, outcome.group): outcome.version for outcome in outcomes}
    known = await groups.versions_of(connection, said) if said else dict[GroupKey, int]()
    for outcome in outcomes:
        expected = known.get((outcome.task, outcome.group), outcome.version)
        if outcome.version != expected:
            where = f"group {outcome.group} of task {outcome.task}"
            raise Reject(f"the score says that version {outcome.version} sampled {where}; it was version {expected}")
