"""Limits of tenants, their usage, and objections to submissions. A tenant without its own value has EVERY_TENANT's.

Admission enforces limits on work in flight; rates are enforced when requests are received.
"""

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Text, and_, bindparam, case, cast, func, literal_column, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common.limits import LIMITS, NO_LIMIT, OF_HTTP, Limit, sentence
from common.messages import SpentBudget
from common.spec import TaskSpec
from common.streams import EVERY_TENANT
from scheduler_svc.base.states import LIVE, TaskState
from scheduler_svc.base.tables import deleted_tasks, limits, packages, served_usage, stored_blobs, tasks, tenants

_defaults = limits.alias("default_limits")
_ALL = literal_column(f"'{EVERY_TENANT}'")
WITH_LIMITS = tenants.outerjoin(limits, limits.c.tenant == tenants.c.id)
"""Tenants joined with their own limits; `limit_of` gives the effective limits."""


def default_of(limit: Limit) -> ColumnElement[int]:
    """Default value of a limit; uncorrelated, so that it is evaluated once per statement."""
    found = select(_defaults.c[limit]).where(_defaults.c.tenant == _ALL).scalar_subquery()
    return func.nullif(found, literal_column(str(NO_LIMIT)))


def limit_of(limit: Limit) -> ColumnElement[int]:
    """Effective limit for a row of WITH_LIMITS; NULL for no limit."""
    return func.nullif(func.coalesce(limits.c[limit], default_of(limit)), literal_column(str(NO_LIMIT)))


def used_tokens(tenant: ColumnElement[Any]) -> ColumnElement[int]:
    """Tokens of the tenant's ledger, including deleted tasks and served requests."""
    own, gone, spent = tasks.alias("own"), deleted_tasks.alias("gone"), served_usage.alias("spent")  # not the outer statement's tables
    booked = select(func.coalesce(func.sum(own.c.booked_tokens), 0)).where(own.c.tenant == tenant).scalar_subquery()
    of_gone = gone.c.prompt_tokens + gone.c.sampled_tokens + gone.c.trained_tokens + gone.c.evaluation_tokens
    deleted = select(func.coalesce(func.sum(of_gone), 0)).where(gone.c.tenant == tenant).scalar_subquery()
    served = select(func.coalesce(func.sum(spent.c.quantity), 0)).where(spent.c.tenant == tenant).scalar_subquery()
    return cast(booked + deleted + served, BigInteger)


def stored_bytes(tenant: ColumnElement[Any]) -> ColumnElement[int]:
    """Bytes of the tenant's blobs, including blobs of deleted tasks that other tasks still use, and of its packages by declared size."""
    own = packages.alias("own_packages")
    of_packages = select(func.coalesce(func.sum(own.c.size_bytes), 0)).where(own.c.tenant == tenant).scalar_subquery()
    return cast(_stored(tenant, func.coalesce(func.sum(stored_blobs.c.bytes), 0)) + of_packages, BigInteger)


def kept_adapters(tenant: ColumnElement[Any]) -> ColumnElement[int]:
    return _stored(tenant, func.count().filter(stored_blobs.c.kind == literal_column("'adapter'")))


def _stored(tenant: ColumnElement[Any], amount: ColumnElement[Any]) -> ColumnElement[Any]:
    # Two sums: for one condition with OR, PostgreSQL would read the blobs of all tenants.
    own, left = (
        select(amount).where(stored_blobs.c.task.in_(_ids(owner, tenant))).scalar_subquery()
        for owner in (tasks.alias("owner"), deleted_tasks.alias("former_owner"))
    )
    return own + left


def _ids(owner: Any, tenant: ColumnElement[Any]) -> Any:
    """Ids of the tenant's tasks in the table `owner`. `Any`: a table's alias. Without `correlate_except`, SQLAlchemy would not correlate
    the tenant's table two statements further out, and the condition would match every row."""
    return select(owner.c.id).where(owner.c.tenant == tenant).correlate_except(owner)


USED_UP: dict[Limit, Any] = {"max_tokens": used_tokens, "max_stored_bytes": stored_bytes, "max_adapters": kept_adapters}
"""Limit → SQL for its usage. At these limits no further group is admitted; work in flight continues."""


def may_admit() -> ColumnElement[bool]:
    """Whether a row of WITH_LIMITS may admit a group; usage is summed only for tenants with such a limit."""
    return is_within(tenants.c.id, limit_of)


def is_within(tenant: ColumnElement[Any], limit: Callable[[Limit], ColumnElement[int]]) -> ColumnElement[bool]:
    """Whether a tenant's usage is below each limit of USED_UP. `limit`: returns the column with a limit's value."""
    return and_(*(or_(limit(name).is_(None), limit(name) > used(tenant)) for name, used in USED_UP.items()))


def used_up() -> list[ColumnElement[int]]:
    """Usage of each limit of USED_UP for a row of WITH_LIMITS; NULL without a limit."""
    return [case((limit_of(name).is_not(None), used(tenants.c.id))).label(f"used_{name}") for name, used in USED_UP.items()]


_named = limits.alias("named")
_VALUES = (
    select(*(func.coalesce(_named.c[name], _defaults.c[name]).label(name) for name in LIMITS))
    .select_from(select(literal_column("1")).subquery("start"))
    .outerjoin(_named, _named.c.tenant == bindparam("of_tenant"))
    .outerjoin(_defaults, _defaults.c.tenant == _ALL)
)


async def limits_of(connection: AsyncConnection, tenant: str) -> dict[Limit, int | None]:
    """Effective limits of a tenant, which need not exist yet; None for no limit."""
    row = (await connection.execute(_VALUES, {"of_tenant": tenant})).mappings().one()
    return {name: None if row[name] == NO_LIMIT else row[name] for name in LIMITS}


async def http_limits(connection: AsyncConnection, tenant: str) -> dict[Limit, int | None]:
    """HTTP limits that are set, by the tenant or for all; None for no limit."""
    row = (await connection.execute(_VALUES, {"of_tenant": tenant})).mappings().one()
    return {name: None if row[name] == NO_LIMIT else row[name] for name in OF_HTTP if row[name] is not None}


async def tokens_used_up(connection: AsyncConnection, tenant: str) -> SpentBudget | None:
    """The limit `max_tokens` as a budget, if the tenant has used it up; else None."""
    most = (await limits_of(connection, tenant))["max_tokens"]
    if most is None:
        return None
    used = (await connection.execute(select(used_tokens(tenants.c.id)).where(tenants.c.id == tenant))).scalar() or 0
    return SpentBudget(unit="tokens", period="total", amount=Decimal(most), spent=Decimal(used), until=None) if used >= most else None


async def set_limits(connection: AsyncConnection, tenant: str, values: Mapping[Limit, int | None]) -> None:
    """Set limits; None removes the tenant's own value."""
    if values:
        new = insert(limits).values(tenant=tenant, **values)
        await connection.execute(new.on_conflict_do_update(index_elements=[limits.c.tenant], set_=dict(values)))


_NAME = literal_column("tenant_name.id", Text)
_OF_IT = tasks.c.tenant == bindparam("of_tenant")
_COUNTED: dict[Limit, Any] = {
    "max_tasks": select(func.count()).select_from(tasks).where(_OF_IT, tasks.c.state.in_(LIVE)).scalar_subquery(),
    "max_unchecked": select(func.count()).select_from(tasks).where(_OF_IT, tasks.c.state == TaskState.SUBMITTED).scalar_subquery(),
    "max_packages": select(func.count()).select_from(packages).where(packages.c.tenant == bindparam("of_tenant")).scalar_subquery(),
    **{one: used(_NAME) for one, used in USED_UP.items()},
}
_USED_BY = select(*_COUNTED.values()).select_from(select(bindparam("of_tenant", type_=Text).label("id")).subquery("tenant_name"))


async def used_by(connection: AsyncConnection, tenant: str) -> dict[Limit, int]:
    """Usage of the limits that PostgreSQL counts, except those on work in flight."""
    row = (await connection.execute(_USED_BY, {"of_tenant": tenant})).one()
    return {one: int(value) for one, value in zip(_COUNTED, row, strict=True)}


OF_SUBMISSIONS: tuple[Limit, ...] = ("max_tasks", "max_unchecked", "max_stored_bytes", "max_adapters")
"""Limits at which further tasks are rejected."""


async def objections_to(connection: AsyncConnection, tenant: str, spec: TaskSpec) -> list[str]:
    """Limits that the tenant has reached or that the task exceeds, as sentences."""
    allowed = await limits_of(connection, tenant)
    found = list[str]()
    if any(allowed[name] is not None for name in OF_SUBMISSIONS):
        used = await used_by(connection, tenant)
        for name in OF_SUBMISSIONS:
            value = allowed[name]
            if value is not None and used[name] >= value:
                found.append(sentence(name, value, used[name], tenant))
    largest, needed = allowed["max_task_tokens"], task_tokens(spec)
    if largest is not None and needed > largest:
        found.append(sentence("max_task_tokens", largest, 0, tenant, needed=needed))
    return found


def task_tokens(spec: TaskSpec) -> int:
    """Maximum tokens that the task may train on: steps × groups × members × tokens."""
    algorithm = spec.algorithm
    return spec.steps * algorithm.groups_per_step * algorithm.group_size * spec.trajectory_tokens
