"""Queries on tenants: weights, limits, and what is used of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, cast, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.decisions.expiry import KINDS
from scheduler_svc.store.states import LIVE
from scheduler_svc.store.tables import deleted_tasks, tasks, tenants

LIMITS = ("priority_ceiling", "max_tasks", "max_sequences", "max_tokens")
DAYS = tuple(f"{kind}_days" for kind in KINDS)
"""Settings of retention."""


@dataclass(frozen=True)
class Tenant:
    """Settings of a tenant, and what is used of its limits. A limit is None where there is none."""

    tenant: str
    weight: float
    priority_ceiling: int | None
    max_tasks: int | None
    max_sequences: int | None
    max_tokens: int | None
    adapters_days: int
    """Days after a task's end, 0 for ever; as the next."""
    checkpoints_days: int
    batches_days: int
    events_days: int
    tasks_days: int
    live_tasks: int
    used_tokens: int


def used_tokens(tenant: ColumnElement[Any]) -> ColumnElement[int]:
    """Tokens of the tenant's ledger, deleted tasks included."""
    own, gone = tasks.alias("own"), deleted_tasks.alias("gone")  # other names than those of the statement around it
    booked = select(func.coalesce(func.sum(own.c.booked_tokens), 0)).where(own.c.tenant == tenant).scalar_subquery()
    of_gone = gone.c.prompt_tokens + gone.c.sampled_tokens + gone.c.trained_tokens + gone.c.evaluation_tokens
    deleted = select(func.coalesce(func.sum(of_gone), 0)).where(gone.c.tenant == tenant).scalar_subquery()
    return cast(booked + deleted, BigInteger)


def may_use_tokens() -> ColumnElement[bool]:
    """Whether a row of `tenants` has tokens left; counted for tenants with a limit only."""
    return or_(tenants.c.max_tokens.is_(None), tenants.c.max_tokens > used_tokens(tenants.c.id))


async def find_tenant(connection: AsyncConnection, tenant: str) -> Tenant | None:
    live = select(func.count()).where(tasks.c.tenant == tenants.c.id, tasks.c.state.in_(LIVE)).scalar_subquery()
    columns = [tenants.c.id, tenants.c.weight, *(tenants.c[name] for name in (*LIMITS, *DAYS)), live, used_tokens(tenants.c.id)]
    row = (await connection.execute(select(*columns).where(tenants.c.id == tenant))).first()
    return Tenant(*row) if row else None


async def was_made_by(connection: AsyncConnection, task: str) -> bool:
    """Whether the task's submission made its tenant: both rows have the time of one transaction."""
    made = select(tasks.c.id).join(tenants, tenants.c.id == tasks.c.tenant)
    return (await connection.execute(made.where(tasks.c.id == task, tenants.c.created_at == tasks.c.submitted_at))).first() is not None


async def set_tenant(connection: AsyncConnection, tenant: str, values: Mapping[str, float | int | None]) -> None:
    """Change settings, and the priorities of its live tasks where the ceiling changes."""
    if values:
        await connection.execute(update(tenants).where(tenants.c.id == tenant).values(dict(values)))
    if "priority_ceiling" in values:
        given = tasks.c.spec["priority"].as_integer()
        ceiling = values["priority_ceiling"]
        wanted = given if ceiling is None else func.least(given, ceiling)
        await connection.execute(update(tasks).where(tasks.c.tenant == tenant, tasks.c.state.in_(LIVE)).values(priority=wanted))
