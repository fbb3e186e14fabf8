"""Answers about tokens used by tenants and tasks, and their bytes in the blob store."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, func, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import (
    AskUsage,
    TaskUsage,
    TenantUsage,
    UsageAnswer,
)
from common.messages.tenancy.billing import SERVED_KINDS, TOKEN_KINDS
from scheduler_svc.base.states import LIVE
from scheduler_svc.base.tables import deleted_tasks, deleted_usage, ledger, packages, served_usage, stored_blobs, tasks, tenants
from scheduler_svc.reading.events import PAGE_SIZE
from scheduler_svc.tenancy.question import Question

BYTES = ("adapter", "checkpoint", "batch")

ENV_KINDS = ("env_ms", "void_env_ms")

ACCELERATOR = "accelerator"


async def answer_usage(question: Question, request: AskUsage) -> UsageAnswer:
    is_first = request.cursor is None
    async with question.reading() as connection:
        tenants = await tenants_usage(connection, question.tenant) if is_first else []
        found = await tasks_usage(connection, question.tenant, after=request.cursor, most=PAGE_SIZE)
    cursor = found[-1].task if len(found) == PAGE_SIZE else None
    if question.tenant is not None or not is_first:
        return UsageAnswer(tenants=tenants, tasks=found, cursor=cursor)
    store = await question.sources.blobs.usage()
    return UsageAnswer(tenants=tenants, tasks=found, cursor=cursor, store_bytes=store.used_bytes, store_limit_bytes=store.limit_bytes)


async def tenants_usage(connection: AsyncConnection, tenant: str | None) -> list[TenantUsage]:
    """Usage by tenant name. An unknown tenant has no entry."""
    spent = _sums(ledger.c.tokens, ledger.c.kind, TOKEN_KINDS, "tokens")
    env_ms = func.sum(ledger.c.tokens).filter(ledger.c.kind == "env_ms").label("env_ms")
    slices = func.sum(ledger.c.tokens).filter(ledger.c.kind == ACCELERATOR).label("accelerator_ms")
    booked = select(ledger.c.tenant, *spent, env_ms, slices).group_by(ledger.c.tenant)
    deleted = [func.sum(deleted_tasks.c[f"{kind}_tokens"]).label(f"{kind}_tokens") for kind in TOKEN_KINDS]
    worked = func.sum(deleted_usage.c.quantity).filter(deleted_usage.c.kind.in_(ENV_KINDS)).label("env_ms")
    computed = func.sum(deleted_usage.c.quantity).filter(deleted_usage.c.kind == ACCELERATOR).label("accelerator_ms")
    former = select(deleted_usage.c.tenant, worked, computed).where(deleted_usage.c.kind.in_((*ENV_KINDS, ACCELERATOR)))
    former = former.group_by(deleted_usage.c.tenant)
    erased = select(deleted_tasks.c.tenant, *deleted).group_by(deleted_tasks.c.tenant)
    owned = union_all(select(tasks.c.id, tasks.c.tenant), select(deleted_tasks.c.id, deleted_tasks.c.tenant)).subquery()
    kept = _sums(stored_blobs.c.bytes, stored_blobs.c.kind, BYTES, "bytes")
    stored = select(owned.c.tenant, *kept).join(stored_blobs, stored_blobs.c.task == owned.c.id).group_by(owned.c.tenant)
    uploaded = select(packages.c.tenant, func.sum(packages.c.size_bytes).label("package_bytes")).group_by(packages.c.tenant)
    given = _sums(served_usage.c.quantity, served_usage.c.kind, SERVED_KINDS, "tokens")
    served = select(served_usage.c.tenant, *given).group_by(served_usage.c.tenant)
    living = select(tasks.c.tenant, func.count().label("live_tasks")).where(tasks.c.state.in_(LIVE)).group_by(tasks.c.tenant)
    found = select(tenants.c.id.label("tenant"))
    if tenant is not None:
        of_tenant = select(tasks.c.id).where(tasks.c.tenant == tenant)  # the ledger has no index on tenants
        booked, erased = booked.where(ledger.c.task.in_(of_tenant)), erased.where(deleted_tasks.c.tenant == tenant)
        served = served.where(served_usage.c.tenant == tenant)
        former = former.where(deleted_usage.c.tenant == tenant)
        stored, living = stored.where(owned.c.tenant == tenant), living.where(tasks.c.tenant == tenant)
        found, uploaded = found.where(tenants.c.id == tenant), uploaded.where(packages.c.tenant == tenant)
    used = {row.tenant: {"tenant": row.tenant, "live_tasks": 0} for row in (await connection.execute(found.order_by(tenants.c.id))).all()}
    for query in (booked, served, former, erased, stored, uploaded, living):
        for row in (await connection.execute(query)).mappings():
            sums = used[row["tenant"]]
            for name, value in row.items():
                if name != "tenant":
                    sums[name] = sums.get(name, 0) + int(value or 0)
    return [TenantUsage.model_validate(one) for one in used.values()]


async def tasks_usage(connection: AsyncConnection, tenant: str | None, *, after: str | None, most: int) -> list[TaskUsage]:
    """Usage of up to `most` tasks with ids above `after`, by id; excludes deleted tasks."""
    page = select(tasks.c.id).order_by(tasks.c.id).limit(most)
    if tenant is not None:
        page = page.where(tasks.c.tenant == tenant)
    if after is not None:
        page = page.where(tasks.c.id > after)
    ids = list((await connection.execute(page)).scalars())
    usage: dict[str, dict[str, Any]] = {task: {"task": task} for task in ids}
    for row in await _spent_and_stored(connection, ids):
        usage[row["task"]] |= {name: int(value or 0) for name, value in row.items() if name != "task"}
    return [TaskUsage.model_validate(one) for one in usage.values()]


async def _spent_and_stored(connection: AsyncConnection, ids: Collection[str]) -> list[Any]:
    slices = func.sum(ledger.c.tokens).filter(ledger.c.kind == ACCELERATOR).label("accelerator_ms")
    spent = select(ledger.c.task, *_sums(ledger.c.tokens, ledger.c.kind, TOKEN_KINDS, "tokens"), slices).where(ledger.c.task.in_(ids))
    stored = select(stored_blobs.c.task, *_sums(stored_blobs.c.bytes, stored_blobs.c.kind, BYTES, "bytes"))
    given = _sums(served_usage.c.quantity, served_usage.c.kind, SERVED_KINDS, "tokens")
    served = select(served_usage.c.task, *given).join(
        tasks, (tasks.c.id == served_usage.c.task) & (tasks.c.tenant == served_usage.c.tenant)
    )
    of_tasks = stored.where(stored_blobs.c.task.in_(ids)).group_by(stored_blobs.c.task)
    return [
        *(await connection.execute(spent.group_by(ledger.c.task))).mappings(),
        *(await connection.execute(of_tasks)).mappings(),
        *(await connection.execute(served.where(tasks.c.id.in_(ids)).group_by(served_usage.c.task))).mappings(),
    ]


def _sums(amount: ColumnElement[Any], kind: ColumnElement[str], kinds: Collection[str], unit: str) -> list[ColumnElement[Any]]:
    """Sum of `amount` for each kind, as columns named `<kind>_<unit>`."""
    return [func.sum(amount).filter(kind == one).label(f"{one}_{unit}") for one in kinds]
