"""Limits of a tenant at a submission. What it has in flight is bounded by admission, and its rates where requests are taken."""

from sqlalchemy.ext.asyncio import AsyncConnection

from common.limits import Limit, sentence
from common.spec import TaskSpec
from scheduler_svc.tenancy import limits

OF_SUBMISSIONS: tuple[Limit, ...] = ("max_tasks", "max_unchecked", "max_stored_bytes", "max_adapters")
"""Limits at which no further task is accepted."""


async def objections_to(connection: AsyncConnection, tenant: str, spec: TaskSpec) -> list[str]:
    """Limits that the tenant has met, and that the task exceeds."""
    allowed = await limits.limits_of(connection, tenant)
    found = list[str]()
    if any(allowed[name] is not None for name in OF_SUBMISSIONS):
        used = await limits.used_by(connection, tenant)
        for name in OF_SUBMISSIONS:
            value = allowed[name]
            if value is not None and used[name] >= value:
                found.append(sentence(name, value, used[name], tenant))
    largest, needed = allowed["max_task_tokens"], task_tokens(spec)
    if largest is not None and needed > largest:
        found.append(sentence("max_task_tokens", largest, 0, tenant, needed=needed))
    return found


def task_tokens(spec: TaskSpec) -> int:
    """Maximum tokens that the task may train on: steps × groups × attempts × tokens."""
    algorithm = spec.algorithm
    return spec.steps * algorithm.groups_per_step * algorithm.group_size * spec.trajectory_tokens
