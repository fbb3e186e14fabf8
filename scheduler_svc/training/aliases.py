"""Aliases: a tenant's names for versions of its tasks. Jobs that change them, answers, rows, and the bucket that rollout replicas read.

An alias pins its version: retention keeps the adapter, and a task with an alias is not deleted.
"""

from typing import Any, Literal

import structlog
from sqlalchemy import ColumnElement, Delete, Insert, Update, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
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
    as_json,
    from_json,
)
from scheduler_svc.base import deleted
from scheduler_svc.base.sql import Statement, any_of
from scheduler_svc.base.tables import aliases
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy.question import Question, named_rows, page_of_names
from scheduler_svc.tenancy.requests import Answering, Refusal
from scheduler_svc.training.decisions.retention import RetentionWindow
from scheduler_svc.training.queries import evaluations, steps, tasks, versions
from scheduler_svc.training.queries.tasks import Task

PAGE_SIZE = 200
"""Maximum aliases per page."""

log = structlog.get_logger()


# ---------------------------------------------------------------------------------------------------------------- jobs


async def set_alias(answer: Answering, job: SetAlias) -> None:
    """Handle a job of `jobs.set-alias.<tenant>`. Raises: Refusal."""
    found = await _set(answer, job)
    answer.tx.post_value(streams.ALIASES_BUCKET, found.key, found)
    _accept(answer, found, is_deleted=False)


async def delete_alias(answer: Answering, job: DeleteAlias) -> None:
    """Handle a job of `jobs.delete-alias.<tenant>`. Raises: Refusal."""
    found = await _changed(answer.tx.connection, job, delete(aliases).where(*_naming(job)))
    answer.tx.post_deletion(streams.ALIASES_BUCKET, found.key)
    _accept(answer, found, is_deleted=True)


def _accept(answer: Answering, found: KnownAlias, *, is_deleted: bool) -> None:
    data = _alias_of(found).model_dump(mode="json", exclude={"tenant"})
    answer.accept(found.adapter.name, {"deleted": is_deleted, **data})
    log.info(f"alias_{'deleted' if is_deleted else 'set'}", tenant=found.tenant, task=found.adapter.task, version=found.adapter.version)


async def _set(answer: Answering, job: SetAlias) -> KnownAlias:
    """Set the job's alias. Raises: Refusal."""
    connection = answer.tx.connection
    if (done := await _find(connection, job, aliases.c.request == job.request)) is not None:
        return done  # redelivered job: `latest` may be another version by now
    if job.name in answer.context.pools:
        raise Refusal(f"name: '{job.name}' is a pool; choose another name", "invalid")
    own = {each.name for each in await find_aliases(connection, aliases.c.tenant == job.tenant)}
    if job.name not in own and len(own) >= MAX_ALIASES:
        raise Refusal(f"name: the tenant has {MAX_ALIASES} aliases, which is the maximum; delete one first", "invalid")
    task = await tasks.lock_own_task(connection, job.tenant, job.task)
    if task is None:
        raise Refusal(f"task: no task '{job.task}' of tenant '{job.tenant}'", "unknown")
    if await deleted.find_tenant(connection, job.tenant) is not None:
        raise Refusal(f"tenant: '{job.tenant}' is deleted", "invalid")
    adapter = await _adapter(connection, task, job.version)
    return await _changed(connection, job, _put(job, task.spec.pool, adapter))


async def _adapter(connection: AsyncConnection, task: Task, wanted: int | Literal["latest", "best"]) -> AdapterRef:
    """Stored adapter of the `wanted` version. Raises: Refusal."""
    version = task.version if wanted == "latest" else wanted
    if version == "best":
        version = await versions.best_of(connection, task, await versions.stored_versions(connection, task.id))
    if not version:
        raise Refusal(f"version: task '{task.id}' has no stored version yet", "unknown")
    adapter = await kept_adapter(connection, task, version)
    if adapter is None:
        reason = "is not kept by its section `keep` or its tenant's days" if version <= task.version else "is not trained"
        raise Refusal(f"version: version {version} of task '{task.id}' {reason}", "unknown")
    return adapter


async def _changed(connection: AsyncConnection, job: SetAlias | DeleteAlias, statement: Insert | Update | Delete) -> KnownAlias:
    """Execute the statement; returns the job's alias. Raises: Refusal if the alias is not at the expected version, or missing."""
    row = (await connection.execute(statement.returning(*_ROW))).first()
    if row is not None:
        return _known(row)
    present = await _find(connection, job)
    if present is not None:
        raise Refusal(f"alias: '{job.name}' names {_alias_of(present).model}", "changed")
    raise Refusal(f"alias: no alias '{job.name}' of tenant '{job.tenant}'", "changed" if job.expected else "unknown")


async def remove_all(tx: Transaction, tenant: str) -> None:
    """Delete all aliases of a tenant."""
    for row in await tx.connection.execute(delete(aliases).where(aliases.c.tenant == tenant).returning(*_ROW)):
        tx.post_deletion(streams.ALIASES_BUCKET, _known(row).key)


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


def _put(job: SetAlias, pool: str, adapter: AdapterRef) -> Insert | Update:
    """Statement that sets the job's alias if it names the expected version."""
    key = {"tenant": job.tenant, "name": job.name}
    values: dict[str, Any] = {"task": adapter.task, "version": adapter.version, "pool": pool, "adapter": as_json(adapter)}
    values |= {"request": job.request, "changed_at": func.now()}
    if job.expected:
        return update(aliases).where(*_naming(job)).values(**values)
    new = insert(aliases).values(**key, **values)
    if job.expected is None:
        return new.on_conflict_do_update(index_elements=[*key], set_=values)
    return new.on_conflict_do_nothing(index_elements=[*key])


async def answer_aliases(question: Question, request: AskAliases) -> AliasesAnswer:
    wanted = named_rows(aliases, question.tenant, request)
    async with question.reading() as connection:
        found = await find_aliases(connection, *wanted, most=PAGE_SIZE)
    kept, cursor = page_of_names([_alias_of(each) for each in found], PAGE_SIZE)
    return AliasesAnswer(aliases=kept, cursor=cursor)
