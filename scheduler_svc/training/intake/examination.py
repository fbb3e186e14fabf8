"""Examination of a submission: the task as the deployment would take it, and every reason why it may not."""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import JsonValue

from common.errors import Reject
from common.messages import AdapterRef, BlobRef
from common.pools import layers_of
from common.spec import TaskSpec, complete
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy.announced_limits import objections_to
from scheduler_svc.training.intake.catalog import Catalog
from scheduler_svc.training.intake.warm_start import starting_adapter
from scheduler_svc.uploads.files import check_files
from scheduler_svc.uploads.own_environments import package_of

T = TypeVar("T")


@dataclass(frozen=True)
class Examined:
    spec: TaskSpec | None
    """With its defaults; None where a field is wrong."""
    reasons: Sequence[str]
    """Why it is rejected; empty where it is not."""
    package: BlobRef | None = None
    """Of the tenant's own environment."""
    start: AdapterRef | None = None
    """Adapter of version 0."""


async def examine(tx: Transaction, tenant: str, task: str, given: Mapping[str, JsonValue], offer: Catalog) -> Examined:
    """What `tenant` submits under the new id `task`. Other tasks and files that it names are locked until the transaction ends."""
    try:
        spec = complete(given, layers_of(given, offer.pools))
    except Reject as error:
        return Examined(None, [*error.reasons, *_about_names(tenant, given, offer, error.reasons)])
    reasons = [*offer.objections(spec), *_of_another_tenant(tenant, spec.tenant), *await objections_to(tx.connection, tenant, spec)]
    package = await _unless_rejected(package_of(tx.connection, tenant, spec), reasons)
    await _unless_rejected(check_files(tx, tenant, spec), reasons)
    start = await _unless_rejected(starting_adapter(tx.connection, task, spec), reasons)
    return Examined(spec, reasons, package, start)


def _about_names(tenant: str, given: Mapping[str, JsonValue], offer: Catalog, said: Sequence[str]) -> list[str]:
    """What can be said of a task whose other fields are wrong: nothing of fields about which something is `said` already."""
    section = given.get("environment")
    names = {"tenant": given.get("tenant"), "pool": given.get("pool")}
    names["environment.name"] = section.get("name") if isinstance(section, dict) else None
    wrong = {reason.partition(": ")[0] for reason in said}
    right = {path: name for path, name in names.items() if isinstance(name, str) and path not in wrong}
    return [
        *(_of_another_tenant(tenant, right["tenant"]) if "tenant" in right else []),
        *(offer.objections_to_pool(right["pool"]) if "pool" in right else []),
        *(offer.objections_to_environment(right["environment.name"]) if "environment.name" in right else []),
    ]


def _of_another_tenant(tenant: str, named: str) -> list[str]:
    return [f"tenant: the task says '{named}', its subject '{tenant}'"] if named != tenant else []


async def _unless_rejected(resolving: Awaitable[T], reasons: list[str]) -> T | None:
    """What it resolves to; where it is rejected, its reasons are added."""
    try:
        return await resolving
    except Reject as error:
        reasons.extend(error.reasons)
        return None
