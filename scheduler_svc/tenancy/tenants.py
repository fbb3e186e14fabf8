"""Queries on tenants: weight, retention and limits, and what is used of these."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from common.limits import LIMITS, Limit
from common.streams import EVERY_TENANT
from scheduler_svc.base.states import LIVE
from scheduler_svc.base.tables import tasks, tenants
from scheduler_svc.tenancy import limits, rates
from scheduler_svc.tenancy.decisions.expiry import KINDS
from scheduler_svc.tenancy.shares import work_in_flight

DAYS = tuple(f"{kind}_days" for kind in KINDS)
"""Settings of retention."""


@dataclass(frozen=True)
class LimitOf:
    """A limit of a tenant. None: no limit, or nothing that is counted here."""

    value: int | None
    default: int | None
    used: int | None


@dataclass(frozen=True)
class Tenant:
    """Settings of a tenant, and what is used of its limits."""

    tenant: str
    weight: float
    adapters_days: int
    """Days after a task's end, 0 for ever; as the next."""
    checkpoints_days: int
    batches_days: int
    events_days: int
    tasks_days: int
    limits: dict[Limit, LimitOf]


async def find_tenant(connection: AsyncConnection, tenant: str) -> Tenant | None:
    columns = [tenants.c.id, tenants.c.weight, *(tenants.c[name] for name in DAYS)]
    row = (await connection.execute(select(*columns).where(tenants.c.id == tenant))).first()
    return Tenant(*row, limits=await limits_in_use(connection, tenant)) if row else None


async def weight_of(connection: AsyncConnection, tenant: str) -> float | None:
    """None where there is no such tenant, or it is deleted."""
    return (await connection.execute(select(tenants.c.weight).where(tenants.c.id == tenant, tenants.c.deleted_by.is_(None)))).scalar()


async def was_made_by(connection: AsyncConnection, task: str) -> bool:
    """Whether the task's submission made its tenant: both rows have the time of one transaction."""
    made = select(tasks.c.id).join(tenants, tenants.c.id == tasks.c.tenant)
    return (await connection.execute(made.where(tasks.c.id == task, tenants.c.created_at == tasks.c.submitted_at))).first() is not None


async def limits_in_use(connection: AsyncConnection, tenant: str) -> dict[Limit, LimitOf]:
    """Every limit of a tenant; of EVERY_TENANT: the defaults."""
    values, defaults = await limits.limits_of(connection, tenant), await limits.limits_of(connection, EVERY_TENANT)
    used = await _used(connection, tenant, values) if tenant != EVERY_TENANT else {}
    return {name: LimitOf(values[name], defaults[name], used.get(name)) for name in LIMITS}


async def _used(connection: AsyncConnection, tenant: str, values: Mapping[Limit, int | None]) -> dict[Limit, int]:
    loads = [load.tenants[tenant] for load in (await work_in_flight(connection)).values() if tenant in load.tenants]
    in_flight: dict[Limit, int] = {
        "max_sequences": sum(load.sequences for load in loads),
        "max_pool_sequences": max((load.sequences for load in loads), default=0),
        "max_pool_tokens": round(max((load.tokens for load in loads), default=0)),
    }
    paces: dict[rates.RequestKind, int | None] = {kind: values[limit] for kind, limit in rates.LIMIT_OF.items()}
    return in_flight | await rates.used_in(connection, tenant, paces) | await limits.used_by(connection, tenant)


async def set_tenant(connection: AsyncConnection, tenant: str, values: Mapping[str, float]) -> None:
    if values:
        await connection.execute(update(tenants).where(tenants.c.id == tenant).values(dict(values)))


async def set_limits(connection: AsyncConnection, tenant: str, values: Mapping[Limit, int | None]) -> None:
    """Change limits of a tenant, or the defaults, and the priorities of live tasks where a ceiling changes."""
    await limits.set_limits(connection, tenant, values)
    if "priority_ceiling" not in values:
        return
    of_it = [tasks.c.tenant == tenant] if tenant != EVERY_TENANT else []
    ceiling = (
        select(limits.limit_of("priority_ceiling")).select_from(limits.WITH_LIMITS).where(tenants.c.id == tasks.c.tenant).scalar_subquery()
    )
    wanted = func.least(tasks.c.spec["priority"].as_integer(), ceiling)  # without a ceiling: the task's own
    await connection.execute(update(tasks).where(*of_it, tasks.c.state.in_(LIVE)).values(priority=wanted))
