"""Tenants: weight, retention and limits, usage of the limits, and the operators' jobs that change them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from pydantic import JsonValue
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from common.limits import LIMITS, NO_LIMIT, Limit
from common.messages import SetTenant
from common.streams import EVERY_TENANT
from scheduler_svc.base import deleted
from scheduler_svc.base.audit import accepted
from scheduler_svc.base.states import LIVE
from scheduler_svc.base.tables import tasks, tenants
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy import limits, rates
from scheduler_svc.tenancy.decisions.expiry import KINDS
from scheduler_svc.tenancy.requests import Answering, Refusal
from scheduler_svc.tenancy.shares import work_in_flight

DAYS = tuple(f"{kind}_days" for kind in KINDS)
"""Columns of the retention days."""


@dataclass(frozen=True)
class LimitOf:
    """A limit of a tenant. None: no limit, or usage that is not counted here."""

    value: int | None
    default: int | None
    used: int | None


@dataclass(frozen=True)
class Tenant:
    """Settings of a tenant, with the usage of its limits."""

    tenant: str
    weight: float
    adapters_days: int
    """Retention in days after a task's end, 0 forever; likewise the next fields."""
    checkpoints_days: int
    batches_days: int
    events_days: int
    tasks_days: int
    limits: dict[Limit, LimitOf]


async def find_tenant(connection: AsyncConnection, tenant: str) -> Tenant | None:
    columns = [tenants.c.id, tenants.c.weight, *(tenants.c[name] for name in DAYS)]
    row = (await connection.execute(select(*columns).where(tenants.c.id == tenant))).first()
    return Tenant(*row, limits=await _limits_in_use(connection, tenant)) if row else None


async def weight_of(connection: AsyncConnection, tenant: str) -> float | None:
    """Weight of the tenant; None if it does not exist or is being deleted."""
    return (await connection.execute(select(tenants.c.weight).where(tenants.c.id == tenant, tenants.c.deleted_by.is_(None)))).scalar()


async def was_made_by(connection: AsyncConnection, task: str) -> bool:
    """Whether the task's submission created its tenant: both rows then have the time of one transaction."""
    made = select(tasks.c.id).join(tenants, tenants.c.id == tasks.c.tenant)
    return (await connection.execute(made.where(tasks.c.id == task, tenants.c.created_at == tasks.c.submitted_at))).first() is not None


async def _limits_in_use(connection: AsyncConnection, tenant: str) -> dict[Limit, LimitOf]:
    """All limits of a tenant, with usage; for EVERY_TENANT, the defaults without usage."""
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


async def _set_limits(connection: AsyncConnection, tenant: str, values: Mapping[Limit, int | None]) -> None:
    """Change limits of a tenant, or the defaults; if the priority ceiling changes, also priorities of live tasks."""
    await limits.set_limits(connection, tenant, values)
    if "priority_ceiling" not in values:
        return
    of_it = [tasks.c.tenant == tenant] if tenant != EVERY_TENANT else []
    ceiling = (
        select(limits.limit_of("priority_ceiling")).select_from(limits.WITH_LIMITS).where(tenants.c.id == tasks.c.tenant).scalar_subquery()
    )
    wanted = func.least(tasks.c.spec["priority"].as_integer(), ceiling)  # without a ceiling: the task's own priority
    await connection.execute(update(tasks).where(*of_it, tasks.c.state.in_(LIVE)).values(priority=wanted))


async def set_tenant(answer: Answering, request: SetTenant) -> None:
    """Handle a job of `jobs.set-tenant.<tenant>`; one without changes only reads the settings, without an audit row. Raises: Refusal."""
    tx = answer.tx
    changed = await (_set_defaults(tx, request) if request.tenant is None else _set_tenant(tx, request, request.tenant))
    if changes := _changes(request):
        tx.record(accepted(answer.by, answer.tenant, changes))
    answer.emit(changed)


def _changes(request: SetTenant) -> dict[str, JsonValue]:
    """Requested changes for the audit; "default" if a tenant's own limit is removed."""
    given: dict[str, JsonValue] = {**_given(request)}
    return given | {one.of: one.value for one in request.limits} | dict.fromkeys(request.defaults, "default")


def _given(request: SetTenant) -> dict[str, float]:
    """Requested weight and retention days."""
    return {name: value for name in ("weight", *DAYS) if (value := getattr(request, name)) is not None}


async def _set_defaults(tx: Transaction, request: SetTenant) -> dict[str, JsonValue]:
    await _set_limits(tx.connection, EVERY_TENANT, {one.of: one.value for one in request.limits})
    found = await _limits_in_use(tx.connection, EVERY_TENANT)
    return {"tenant": EVERY_TENANT, "limits": {name: asdict(limit) for name, limit in found.items()}}


async def _set_tenant(tx: Transaction, request: SetTenant, tenant: str) -> dict[str, JsonValue]:
    """Change the tenant; returns all its values. Raises: Refusal."""
    found = await find_tenant(tx.connection, tenant)
    if await deleted.find_tenant(tx.connection, tenant) is not None:
        raise Refusal(f"tenant: '{tenant}' is deleted")
    if found is None:
        raise Refusal(f"tenant: no tenant '{tenant}'; there is one from its first task on")
    if given := _given(request):
        await tx.connection.execute(update(tenants).where(tenants.c.id == tenant).values(given))
    own: dict[Limit, int | None] = {one.of: NO_LIMIT if one.value is None else one.value for one in request.limits}
    own |= dict.fromkeys(request.defaults)
    await _set_limits(tx.connection, tenant, own)
    found = await find_tenant(tx.connection, tenant)
    assert found is not None
    return asdict(found)
