"""Evaluations: planned when their version is trained, opened group by group as fairness allows, reported when all groups have ended.

A task's last evaluation, or one that reaches its target, ends the task.
"""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from pydantic import JsonValue
from sqlalchemy.ext.asyncio import AsyncConnection

from common.evaluation import Asked, Difference, EvaluationReport, Gain, Uncertainty, packed
from common.messages import as_json
from common.spec import Protocol
from scheduler_svc.base.sql import GroupKey
from scheduler_svc.base.states import TaskState, VoidReason
from scheduler_svc.base.transaction import OutboxMessage, Transaction
from scheduler_svc.tenancy import shares
from scheduler_svc.tenancy.shares import Charge
from scheduler_svc.training.accounting import settle_accounts
from scheduler_svc.training.decisions.endings import Evaluated, reason_to_finish
from scheduler_svc.training.decisions.evaluation import (
    RETRY_INCREMENT,
    BestSoFar,
    Result,
    gain_of,
    groups_to_plan,
    is_due,
    may_be_retried,
    result_of,
    standing_after,
)
from scheduler_svc.training.decisions.pool_load import PoolTimes, StableFor
from scheduler_svc.training.group_messages import open_group_message
from scheduler_svc.training.queries import evaluations, groups, members, tasks
from scheduler_svc.training.queries.evaluations import EvaluationKey
from scheduler_svc.training.queries.groups import EndedGroup
from scheduler_svc.training.queries.members import ScoredMember
from scheduler_svc.training.queries.progress import progress_of
from scheduler_svc.training.queries.tasks import Task
from scheduler_svc.training.termination import end_task


async def plan(connection: AsyncConnection, task: Task) -> None:
    """Plan the evaluation of the task's version by all protocols, if one is due."""
    if not is_due(task.spec, task.version):
        return
    wanted = task.spec.evaluation
    planned = groups_to_plan(wanted, await evaluations.count(connection, task.id))
    await evaluations.add(connection, task.id, task.version, task.adapter or task.start, planned)


async def open_group(
    connection: AsyncConnection, task: Task, charged_tokens: float, times: PoolTimes, home: str | None = None
) -> list[OutboxMessage]:
    """Open the running task's next planned group; returns its message, or an empty list if no group is planned.

    `home`: replica that samples its turns; None: any.
    """
    deadline_s = times.of(task.spec.pool) + task.spec.limits.episode_timeout_s
    deadline_at = datetime.fromtimestamp(deadline_s, UTC)
    opened = await evaluations.open_first_group(connection, task.id, charged_tokens=charged_tokens, deadline_at=deadline_at)
    if opened is None:
        return []
    await shares.charge(connection, [Charge(task.id, task.tenant, charged_tokens)])
    return [open_group_message(task, opened, home)]


async def settle(tx: Transaction, by_id: dict[str, Task], outcomes: Sequence[ScoredMember]) -> None:
    """Settle outcomes of members of the locked tasks `by_id`, and finish evaluations that they complete."""
    if outcomes:
        await members.settle_members(tx.connection, outcomes)
        decided = await groups.groups_to_end(tx.connection, {(outcome.task, outcome.group) for outcome in outcomes})
        await _ended(tx, by_id, await groups.end_groups(tx.connection, [found.group.key for found in decided]))


async def abandon(tx: Transaction, by_id: dict[str, Task], keys: Collection[GroupKey], detail: str) -> None:
    """End unfinished evaluation groups: missing attempts count as failed, and no group is refilled."""
    await _ended(tx, by_id, await groups.end_groups(tx.connection, keys, detail), void=VoidReason.FAILED)


async def end_overdue(tx: Transaction, by_id: dict[str, Task], overdue: Collection[GroupKey], *, stable_for_s: StableFor) -> None:
    """Abandon open groups past their deadlines. `stable_for_s`: seconds since the last disturbance, by pool (`upkeep/stalls.py`).

    If the disturbance is more recent than a group's timeout, the group is retried instead, up to a limit.
    """
    disturbed = {task.id for task in by_id.values() if stable_for_s(task.spec.pool) < task.spec.limits.episode_timeout_s}
    retried = {(task, number) for task, number in overdue if task in disturbed and may_be_retried(number)}
    charged = await evaluations.retry_groups(tx.connection, retried, add=RETRY_INCREMENT)
    await shares.charge(tx.connection, [Charge(task, by_id[task].tenant, -tokens) for task, tokens in charged.items()])
    await abandon(tx, by_id, set(overdue) - retried, "was not finished before limits.episode_timeout_s")


async def finish_if_done(tx: Transaction, task: Task) -> bool:
    """End a task that has trained every step, unless an evaluation is running; returns whether it ended."""
    if task.version < task.spec.steps or await evaluations.is_running(tx.connection, task.id):
        return False
    progress = (await progress_of(tx.connection, task.id))[task.id]
    return await end_task(tx, task, TaskState.FINISHED, data={"version": task.version, "reward": progress.reward})


async def _ended(tx: Transaction, by_id: dict[str, Task], ended: Sequence[EndedGroup], *, void: VoidReason | None = None) -> None:
    await settle_accounts(tx.connection, by_id, ended, void=void)
    for evaluation in await evaluations.complete(tx.connection, {(group.task, group.version) for group in ended}):
        await _finish(tx, by_id[evaluation[0]], evaluation)


async def _finish(tx: Transaction, task: Task, evaluation: EvaluationKey) -> None:
    """Report the evaluation's result, unless the task has already ended."""
    current = (await tasks.lock_tasks(tx.connection, [task.id]))[0]
    if not current.is_live:
        return
    protocol = task.spec.evaluation.named(evaluation[2])
    result = await _result(tx.connection, evaluation, protocol)
    report = await _report(tx.connection, task, evaluation, result)
    reward, lower_bound = report.reward, report.interval[0] if report.interval else None
    planned_at, finished_at = await evaluations.finish(
        tx.connection, evaluation, reward, lower_bound, report.model_dump(mode="json", exclude={"took_s", "asked", "by_prompt"})
    )
    report = report.model_copy(update={"took_s": (finished_at - planned_at).total_seconds()})
    tx.emit_event(task.tenant, task.id, "evaluation", as_json(report))
    decides = Evaluated(report.version, reward, lower_bound, report.best_version, report.without_gain) if report.decides_by else None
    reason = reason_to_finish(task.spec, current.version, evaluated=decides)
    if reason is not None:
        data: dict[str, JsonValue] = {"version": current.version, "reward": reward, "reason": reason}
        await end_task(tx, current, TaskState.FINISHED, reason=reason, data=data)
    else:
        await finish_if_done(tx, current)


async def _report(connection: AsyncConnection, task: Task, evaluation: EvaluationKey, result: Result) -> EvaluationReport:
    """Report of the evaluation, without its duration."""
    _, version, name = evaluation
    wanted, protocol = task.spec.evaluation, task.spec.evaluation.named(name)
    decides = protocol == wanted.protocols[0]
    gain = await _gain_over(connection, task, protocol, result, 0) if version else None
    standing = await _standing(connection, task, version, result, gain) if decides and task.spec.stop.patience and result.reward else None
    return EvaluationReport(
        version=version,
        protocol=name,
        decides_by=wanted.decide_by if decides else None,
        reward=result.reward and result.reward.mean,
        standard_error=result.reward and result.reward.standard_error,
        interval=result.reward and result.reward.interval,
        pass_at={str(k): value for k, value in result.pass_at.items()},
        pass_at_1=result.pass_at_1 and Uncertainty.of(result.pass_at_1),
        gain=gain and Gain.of(gain),
        best_version=standing and standing.best_version,
        without_gain=standing and standing.without_gain,
        prompts=len(result.by_prompt),
        failed_share=result.failed_share,
        failure=await evaluations.first_failure(connection, evaluation) if result.failed_share else "",
        response_length=result.response_length,
        truncated_share=result.truncated_share,
        attempts=protocol.attempts,
        binary=result.is_binary,
        asked=Asked.by(task.spec, protocol),
        by_prompt=packed(result.by_prompt, protocol.prompts),
    )


async def _standing(connection: AsyncConnection, task: Task, version: int, result: Result, gain_over_0: Difference | None) -> BestSoFar:
    """Best version so far by the deciding protocol, including this evaluation."""
    wanted = task.spec.evaluation
    protocol = wanted.protocols[0]
    before = await evaluations.latest_standing(connection, task.id, protocol.name)
    gain = gain_over_0
    if before and before.best_version:
        gain = await _gain_over(connection, task, protocol, result, before.best_version)
    return standing_after(before, version, gain, by_mean=wanted.decide_by == "mean")


async def _gain_over(connection: AsyncConnection, task: Task, protocol: Protocol, result: Result, version: int) -> Difference | None:
    """Paired difference to the result of `version`; None if that version's evaluation is not finished."""
    before = (task.id, version, protocol.name)
    if not await evaluations.is_finished(connection, before):
        return None
    return gain_of(result, await _result(connection, before, protocol), protocol)


async def _result(connection: AsyncConnection, evaluation: EvaluationKey, protocol: Protocol) -> Result:
    return result_of(await evaluations.attempts_of(connection, evaluation), protocol)
