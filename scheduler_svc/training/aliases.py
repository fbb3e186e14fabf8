"""Aliases: a tenant's names for versions of its tasks. Jobs that change them, answers, rows, and the bucket that rollout replicas read.

An alias pins its version: retention keeps the adapter, and a task with an alias is not deleted.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import structlog
from sqlalchemy import ColumnElement, delete, func, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.bus import Delivery
from common.messages import (
    MAX_ALIASES,
    AdapterRef,
    AliasesAnswer,
    AliasOf,
    AskAliases,
    BlobRef,
    DeleteAlias,
    KnownAlias,
    SetAlias,
    alias_key,
    as_json,
    from_json,
)
from scheduler_svc.base import deleted
from scheduler_svc.base.audit import accepted, refused
from scheduler_svc.base.context import HandlerContext, sender_of
from scheduler_svc.base.sql import Statement, any_of
from scheduler_svc.base.tables import aliases
from scheduler_svc.base.transaction import OutboxMessage, Transaction
from scheduler_svc.tenancy.question import Question, cursor_of_names, names_after, page
from scheduler_svc.training.decisions.retention import RetentionWindow
from scheduler_svc.training.queries import evaluations, steps, tasks, versions
from scheduler_svc.training.queries.tasks import Task

PAGE_SIZE = 200
"""Maximum aliases per page."""

log = structlog.get_logger()


# ---------------------------------------------------------------------------------------------------------------- jobs


@dataclass(frozen=True)
class Refusal(Exception):
    """An alias change that is refused and has no effect."""

    code: Literal["unknown", "changed", "invalid"]
    """`unknown`: the tenant has no such task, version or alias; `changed`: the alias does not name the expected version."""
    reason: str


async def set_alias(context: HandlerContext, delivery: Delivery) -> None:
    """Handle a job of `jobs.set-alias.<tenant>`. Raises: Reject if it cannot be decoded; Retry if PostgreSQL is unavailable."""
    await _change(context, delivery, delivery.read(SetAlias))


async def delete_alias(context: HandlerContext, delivery: Delivery) -> None:
    """Handle a job of `jobs.delete-alias.<tenant>`. Raises: Reject if it cannot be decoded; Retry if PostgreSQL is unavailable."""
    await _change(context, delivery, delivery.read(DeleteAlias))


async def _change(context: HandlerContext, delivery: Delivery, job: SetAlias | DeleteAlias) -> None:
    by, is_deleted = sender_of(delivery), isinstance(job, DeleteAlias)
    async with context.transaction() as tx:
        try:
            found = await _remove(tx, job) if isinstance(job, DeleteAlias) else await _set(tx, context, job)
        except Refusal as refusal:
            tx.record(refused(by, refusal.reason))
            tx.emit_event(job.tenant, "none", "alias", {"request": job.request, "code": refusal.code, "reasons": [refusal.reason]})
            return
        tx.record(accepted(by, found.adapter.name))
        if is_deleted:
            _post_removal(tx, found.tenant, found.name)
        else:
            post_aliases(tx, [found])
        log.info(f"alias_{'deleted' if is_deleted else 'set'}", tenant=found.tenant, task=found.adapter.task, version=found.adapter.version)
        data = _alias_of(found).model_dump(mode="json", exclude={"tenant"})
        tx.emit_event(found.tenant, "none", "alias", {"request": job.request, "deleted": is_deleted, **data})


async def _set(tx: Transaction, context: HandlerContext, job: SetAlias) -> KnownAlias:
    """Set the job's alias. Raises: Refusal."""
    if (done := await _find(tx.connection, job, aliases.c.request == job.request)) is not None:
        return done  # redelivered job: `latest` may be another version by now
    if job.name in context.pools:
        raise Refusal("invalid", f"name: '{job.name}' is a pool; choose another name")
    own = {each.name for each in await find_aliases(tx.connection, aliases.c.tenant == job.tenant)}
    if job.name not in own and len(own) >= MAX_ALIASES:
        raise Refusal("invalid", f"name: the tenant has {MAX_ALIASES} aliases, which is the maximum; delete one first")
    task = await tasks.lock_own_task(tx.connection, job.tenant, job.task)
    if task is None:
        raise Refusal("unknown", f"task: no task '{job.task}' of tenant '{job.tenant}'")
    if await deleted.find_tenant(tx.connection, job.tenant) is not None:
        raise Refusal("invalid", f"tenant: '{job.tenant}' is deleted")
    found = await _put(tx.connection, job, task.spec.pool, await _adapter(tx.connection, task, job.version))
    return found or await _refuse_unexpected(tx, job)


async def _adapter(connection: AsyncConnection, task: Task, wanted: int | Literal["latest", "best"]) -> AdapterRef:
    """Stored adapter of the `wanted` version. Raises: Refusal."""
    version = task.version if wanted == "latest" else wanted
    if version == "best":
        version = await versions.best_of(connection, task, await versions.stored_versions(connection, task.id))
    if not version:
        raise Refusal("unknown", f"version: task '{task.id}' has no stored version yet")
    adapter = await kept_adapter(connection, task, version)
    if adapter is None:
        reason = "is not kept by its section `keep` or its tenant's days" if version <= task.version else "is not trained"
        raise Refusal("unknown", f"version: version {version} of task '{task.id}' {reason}")
    return adapter


async def _remove(tx: Transaction, job: DeleteAlias) -> KnownAlias:
    """Delete the job's alias and return it. Raises: Refusal."""
    row = (await tx.connection.execute(delete(aliases).where(*_naming(job)).returning(*_ROW))).first()
    return _known(row) if row else await _refuse_unexpected(tx, job)


async def _refuse_unexpected(tx: Transaction, job: SetAlias | DeleteAlias) -> NoReturn:
    """Raises: Refusal, because the alias does not exist or does not name the expected version."""
    present = await _find(tx.connection, job)
    if present is None:
        raise Refusal("changed" if job.expected else "unknown", f"alias: no alias '{job.name}' of tenant '{job.tenant}'")
    raise Refusal("changed", f"alias: '{job.name}' names {_alias_of(present).model}")


# -------------------------------------------------------------------------------------------------------------- bucket


def post_aliases(tx: Transaction, found: Iterable[KnownAlias]) -> None:
    """Post the aliases to their NATS bucket, published once the transaction is committed."""
    tx.post([OutboxMessage(streams.value_subject(streams.ALIASES_BUCKET, each.key), each, "", as_json=True) for each in found])


def _post_removal(tx: Transaction, tenant: str, name: str) -> None:
    tx.outbox.post_encoded(streams.value_subject(streams.ALIASES_BUCKET, alias_key(tenant, name)), b"", "", {"KV-Operation": "DEL"})


async def remove_all(tx: Transaction, tenant: str) -> None:
    """Delete all aliases of a tenant."""
    for name in (await tx.connection.execute(delete(aliases).where(aliases.c.tenant == tenant).returning(aliases.c.name))).scalars():
        _post_removal(tx, tenant, name)


# ------------------------------------------------------------------------------------------------------- kept adapters


_ADAPTERS = Statement(select(aliases.c.adapter["blob"].label("blob")).where(aliases.c.task == any_of("ids")))


async def held_by_others(connection: AsyncConnection, *ids: str) -> dict[str, BlobRef]:
    """Blobs of these tasks' adapters that other tasks started from or aliases name, by blob name.

    They are kept regardless of the tasks' retention rules and the tenants' retention days.
    """
    named = [from_json(BlobRef, row.blob) for row in await _ADAPTERS.run(connection, {"ids": list(ids)})]
    return await tasks.started_from(connection, ids) | {ref.name: ref for ref in named}


async def kept_adapter(connection: AsyncConnection, task: Task, version: int) -> AdapterRef | None:
    """Adapter of a version of the locked task, kept at least until the lock is released; None if no rule keeps it.

    An adapter that no rule keeps may be deleted at any moment, so it counts as gone even while it is still stored.
    """
    adapter = await steps.adapter_of(connection, task.id, version)
    if adapter is None:
        return None
    held = await evaluations.held_versions(connection, task.id, task.spec)
    is_kept = RetentionWindow(task.spec, task.version, held).has_adapter(version) and "adapters" not in task.expired
    return adapter if is_kept or adapter.blob.name in await held_by_others(connection, task.id) else None


# ---------------------------------------------------------------------------------------------------------------- rows

_CHANGED_S = func.extract("epoch", aliases.c.changed_at).label("changed_s")
_ROW = (aliases.c.tenant, aliases.c.name, aliases.c.pool, aliases.c.adapter, _CHANGED_S)


def _known(row: Any) -> KnownAlias:
    adapter = from_json(AdapterRef, row.adapter)
    return KnownAlias(tenant=row.tenant, name=row.name, pool=row.pool, adapter=adapter, changed_s=float(row.changed_s))


def _alias_of(known: KnownAlias) -> AliasOf:
    task, version = known.adapter.task, known.adapter.version
    return AliasOf(tenant=known.tenant, name=known.name, task=task, version=version, pool=known.pool, changed_s=known.changed_s)


async def find_aliases(connection: AsyncConnection, *where: ColumnElement[bool], most: int | None = None) -> list[KnownAlias]:
    """Aliases of all tenants that meet the conditions, ordered by tenant and name; at most `most`."""
    statement = select(*_ROW).where(*where).order_by(aliases.c.tenant, aliases.c.name).limit(most)
    return [_known(row) for row in await connection.execute(statement)]


async def _find(connection: AsyncConnection, job: SetAlias | DeleteAlias, *where: ColumnElement[bool]) -> KnownAlias | None:
    return next(iter(await find_aliases(connection, aliases.c.tenant == job.tenant, aliases.c.name == job.name, *where)), None)


def _naming(job: SetAlias | DeleteAlias) -> list[ColumnElement[bool]]:
    """Conditions that select the job's alias if it names the version that the job expects."""
    condition = [aliases.c.tenant == job.tenant, aliases.c.name == job.name]
    if job.expected is not None:
        condition.append(aliases.c.task + "@" + aliases.c.version.cast(aliases.c.task.type) == job.expected)
    return condition


async def _put(connection: AsyncConnection, job: SetAlias, pool: str, adapter: AdapterRef) -> KnownAlias | None:
    """Set an alias in one statement; None if it does not name the expected version."""
    values = {"task": adapter.task, "version": adapter.version, "pool": pool, "adapter": as_json(adapter), "request": job.request}
    if job.expected:
        statement = update(aliases).where(*_naming(job)).values(**values, changed_at=func.now())
    else:
        new = insert(aliases).values(tenant=job.tenant, name=job.name, **values)
        changed = {**values, "changed_at": func.now()}
        key = [aliases.c.tenant, aliases.c.name]
        statement = (
            new.on_conflict_do_nothing(index_elements=key)
            if job.expected == ""
            else new.on_conflict_do_update(index_elements=key, set_=changed)
        )
    row = (await connection.execute(statement.returning(*_ROW))).first()
    return _known(row) if row else None


async def of_task(connection: AsyncConnection, task: str) -> list[str]:
    """Aliases that name versions of the task, sorted."""
    return list((await connection.execute(select(aliases.c.name).where(aliases.c.task == task).order_by(aliases.c.name))).scalars())


async def answer_aliases(question: Question, request: AskAliases) -> AliasesAnswer:
    wanted = [tuple_(aliases.c.tenant, aliases.c.name) > names_after(request.after)]
    if question.tenant is not None:
        wanted.append(aliases.c.tenant == question.tenant)
    if request.name is not None:
        wanted.append(aliases.c.name == request.name)
    async with question.reading() as connection:
        found = await find_aliases(connection, *wanted, most=PAGE_SIZE)
    kept = page([_alias_of(each) for each in found])
    return AliasesAnswer(aliases=kept, cursor=cursor_of_names(kept, len(found), PAGE_SIZE))
