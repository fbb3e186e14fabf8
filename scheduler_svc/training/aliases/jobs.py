"""Handles aliases: a tenant's names for versions of its tasks. An alias holds its version: retention keeps the adapter, and a task that
has one is not deleted."""

from dataclasses import dataclass
from typing import Literal

import structlog
from pydantic import JsonValue

from common.bus import Delivery
from common.messages import MAX_ALIASES, AdapterRef, DeleteAlias, SetAlias
from scheduler_svc.base import deleted
from scheduler_svc.base.audit import Actor, accepted, refused
from scheduler_svc.base.context import HandlerContext, sender_of
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.training.aliases import queries as aliases
from scheduler_svc.training.aliases.announced import post_aliases, post_removal
from scheduler_svc.training.aliases.kept_adapters import kept_adapter
from scheduler_svc.training.aliases.queries import Alias
from scheduler_svc.training.queries import tasks
from scheduler_svc.training.queries import versions as progress
from scheduler_svc.training.queries.tasks import Task
from scheduler_svc.training.queries.versions import AskedTask

log = structlog.get_logger()


@dataclass(frozen=True)
class Refusal(Exception):
    """A change that has no effect."""

    code: Literal["unknown", "changed", "invalid"]
    """`unknown`: the tenant has no such task, version or alias; `changed`: the alias does not name what was expected."""
    reason: str


async def set_alias(context: HandlerContext, delivery: Delivery) -> None:
    """Handle a job of `jobs.set-alias.<tenant>`. Raises: Reject when it is none; Retry when PostgreSQL is unavailable."""
    job, by = delivery.read(SetAlias), sender_of(delivery)
    async with context.transaction() as tx:
        try:
            found = await _set(tx, context, job)
        except Refusal as refusal:
            _refuse(tx, by, job, refusal)
            return
        tx.record(accepted(by, f"{found.adapter.task}.v{found.adapter.version}"))
        post_aliases(tx, [found])
        log.info("alias_set", tenant=found.tenant, task=found.adapter.task, version=found.adapter.version)
        _answer(tx, found, job.request, is_deleted=False)


async def _set(tx: Transaction, context: HandlerContext, job: SetAlias) -> Alias:
    """Raises: Refusal."""
    present = await aliases.find(tx.connection, job.tenant, job.name)
    if present is not None and present.request == job.request:  # delivered before; `latest` may be another version by now
        return present
    if job.name in context.pools:
        raise Refusal("invalid", f"name: '{job.name}' is a pool; choose another name")
    if present is None and await aliases.count(tx.connection, job.tenant) >= MAX_ALIASES:
        raise Refusal("invalid", f"name: the tenant has {MAX_ALIASES} aliases, which is the maximum; delete one first")
    task = await tasks.lock_own_task(tx.connection, job.tenant, job.task)
    if task is None:
        raise Refusal("unknown", f"task: no task '{job.task}' of tenant '{job.tenant}'")
    if await deleted.find_tenant(tx.connection, job.tenant) is not None:
        raise Refusal("invalid", f"tenant: '{job.tenant}' is deleted")
    adapter = await _adapter(tx, task, job.version)
    found = await aliases.put(tx.connection, job.tenant, job.name, task.spec.pool, adapter, job.request, job.expected)
    if found is None:
        raise await _not_as_expected(tx, job)
    return found


async def _adapter(tx: Transaction, task: Task, wanted: int | Literal["latest", "best"]) -> AdapterRef:
    """Raises: Refusal."""
    version = task.version if wanted == "latest" else await _best(tx, task) if wanted == "best" else wanted
    if not version:
        raise Refusal("unknown", f"version: task '{task.id}' has no stored version yet")
    adapter = await kept_adapter(tx.connection, task, version)
    if adapter is None:
        reason = "is not kept by its section `keep` or its tenant's days" if version <= task.version else "is not trained"
        raise Refusal("unknown", f"version: version {version} of task '{task.id}' {reason}")
    return adapter


async def _best(tx: Transaction, task: Task) -> int | None:
    stored = await progress.stored_versions(tx.connection, task.id)
    return await progress.best_of(tx.connection, AskedTask(task.id, task.version, task.spec, task.submission), stored)


async def delete_alias(context: HandlerContext, delivery: Delivery) -> None:
    """Handle a job of `jobs.delete-alias.<tenant>`. Raises: Reject when it is none; Retry when PostgreSQL is unavailable."""
    job, by = delivery.read(DeleteAlias), sender_of(delivery)
    async with context.transaction() as tx:
        found = await aliases.remove(tx.connection, job.tenant, job.name, job.expected)
        if found is None:
            _refuse(tx, by, job, await _not_as_expected(tx, job))
            return
        tx.record(accepted(by, f"{found.adapter.task}.v{found.adapter.version}"))
        post_removal(tx, found.tenant, found.name)
        log.info("alias_deleted", tenant=found.tenant, task=found.adapter.task, version=found.adapter.version)
        _answer(tx, found, job.request, is_deleted=True)


async def _not_as_expected(tx: Transaction, job: SetAlias | DeleteAlias) -> Refusal:
    present = await aliases.find(tx.connection, job.tenant, job.name)
    if present is None:
        return Refusal("changed" if job.expected else "unknown", f"alias: no alias '{job.name}' of tenant '{job.tenant}'")
    return Refusal("changed", f"alias: '{job.name}' names {present.model}")


def _refuse(tx: Transaction, by: Actor, job: SetAlias | DeleteAlias, refusal: Refusal) -> None:
    tx.record(refused(by, refusal.reason))
    tx.emit_event(job.tenant, "none", "alias", {"request": job.request, "code": refusal.code, "reasons": [refusal.reason]})


def _answer(tx: Transaction, alias: Alias, request: str, *, is_deleted: bool) -> None:
    data: dict[str, JsonValue] = {"request": request, "name": alias.name, "task": alias.adapter.task, "version": alias.adapter.version}
    tx.emit_event(alias.tenant, "none", "alias", data | {"pool": alias.pool, "deleted": is_deleted, "changed_s": alias.changed_s})
