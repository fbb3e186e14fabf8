"""Messages that open groups, of training and of evaluations."""

import hashlib
from datetime import UTC, datetime

from common import streams
from common.messages import GroupContext, OpenGroup
from common.spec import Protocol, TaskSpec
from scheduler_svc.base.transaction import OutboxMessage
from scheduler_svc.training.decisions.pool_load import PoolTimes
from scheduler_svc.training.queries.groups import NewGroup
from scheduler_svc.training.queries.tasks import Task


def new_group(task: Task, number: int, charged_tokens: float, times: PoolTimes) -> NewGroup:
    """Row of the task's group `number`, to be sampled by the task's current version."""
    digest = hashlib.sha256(f"{task.spec.seed}:{number}".encode()).digest()
    return NewGroup(
        task=task.id,
        number=number,
        version=task.version,
        row=number,
        seed=int.from_bytes(digest[:7], "big"),
        size=task.spec.algorithm.group_size,
        charged_tokens=charged_tokens,
        deadline_at=datetime.fromtimestamp(times.of(task.spec.pool) + task.spec.limits.episode_timeout_s, UTC),
        adapter=task.adapter or task.start,
        parked_ms=round(times.parked_s(task.spec.pool) * 1000),
    )


def open_group_message(task: Task, group: NewGroup, home: str | None = None) -> OutboxMessage:
    """Message that opens `group`. `home`: replica whose sampler gets its turns; None: any."""
    assert task.family is not None
    spec = task.spec
    context = GroupContext(
        tenant=task.tenant,
        task=task.id,
        pool=spec.pool,
        group=group.number,
        size=group.size,
        version=group.version,
        adapter=group.adapter,
        family=task.family,
        environment=spec.environment,
        sampling=spec.sampling,
        limits=spec.limits,
        row=group.row,
        seed=group.seed,
        deadline_s=group.deadline_at.timestamp(),
        task_seed=spec.seed,
        weight=task.weight,
        by_operator=task.by_operator,
        package=task.package,
        home=home,
    )
    if group.protocol is not None:
        context = context.model_copy(update=_as_evaluated(spec, spec.evaluation.named(group.protocol)))
    subject = streams.open_group(context.family, context.task, context.group)
    return OutboxMessage(subject, OpenGroup(group=context), f"{context.task}:{context.group}:open")


def _as_evaluated(spec: TaskSpec, wanted: Protocol) -> dict[str, object]:
    """Fields of a group's context that its evaluation protocol overrides: environment options, seed, and temperature."""
    return {
        "environment": spec.environment_of(wanted),
        "sampling": spec.sampling.model_copy(update={"temperature": wanted.temperature or spec.sampling.temperature}),
        "greedy": wanted.temperature == 0,
        "task_seed": None,
    }
