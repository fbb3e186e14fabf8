"""Submissions: the task as the deployment would accept it, and every reason to reject it. A preview returns both, and stores nothing."""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import JsonValue
from sqlalchemy.ext.asyncio import AsyncConnection

from common.bus import Delivery
from common.errors import Reject
from common.messages import AdapterRef, BlobRef, PreviewTask, ReplicaReport, as_json, is_file, is_own, shortened
from common.pools import Pools, layers_of, objections, objections_to_name
from common.spec import Lora, TaskSpec, complete, sources
from scheduler_svc.base.audit import accepted, refused
from scheduler_svc.base.context import HandlerContext, sender_of
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy.limits import objections_to
from scheduler_svc.training.aliases import kept_adapter
from scheduler_svc.training.environment_checks import family_of, sampler_objections
from scheduler_svc.training.queries import tasks
from scheduler_svc.training.queries.tasks import Task
from scheduler_svc.uploads.files import check_files
from scheduler_svc.uploads.own_environments import package_of

T = TypeVar("T")


@dataclass(frozen=True)
class Catalog:
    """The deployment's pools, the environment families that live replicas serve, and these replicas' reports."""

    pools: Pools
    families: set[str]
    replicas: Sequence[ReplicaReport] = ()

    @classmethod
    def of(cls, context: HandlerContext) -> "Catalog":
        return cls(context.pools, context.replicas.families, context.replicas.reports)

    def objections(self, spec: TaskSpec) -> list[str]:
        """Reasons to reject the task that need no database; empty if there are none."""
        found = [*objections(spec, self.pools), *sampler_objections(spec, self.replicas)]
        return [*found, *self.objections_to_environment(spec.environment.name)]

    def objections_to_environment(self, name: str) -> list[str]:
        if not self.families or is_own(name) or is_file(name) or family_of(name, self.families) is not None:
            return []
        return [f"environment.name: no environment '{name}' here; `marlaas envs` lists those installed"]


@dataclass(frozen=True)
class Examined:
    spec: TaskSpec | None
    """Spec with its defaults; None if a field is invalid."""
    reasons: Sequence[str]
    """Reasons to reject the task; empty if it is acceptable."""
    package: BlobRef | None = None
    """Package of the tenant's own environment, if the task uses one."""
    start: AdapterRef | None = None
    """Adapter of version 0, for a warm start."""


async def examine(tx: Transaction, tenant: str, task: str, given: Mapping[str, JsonValue], offer: Catalog) -> Examined:
    """Examine a submission of `tenant` under the new id `task`. Tasks and files that it names are locked until the transaction ends."""
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
    """Objections to the tenant, pool and environment names of an invalid spec. `said`: earlier objections, whose fields are skipped."""
    section = given.get("environment")
    names = {"tenant": given.get("tenant"), "pool": given.get("pool")}
    names["environment.name"] = section.get("name") if isinstance(section, dict) else None
    wrong = {reason.partition(": ")[0] for reason in said}
    right = {path: name for path, name in names.items() if isinstance(name, str) and path not in wrong}
    return [
        *(_of_another_tenant(tenant, right["tenant"]) if "tenant" in right else []),
        *(objections_to_name(right["pool"], offer.pools) if "pool" in right else []),
        *(offer.objections_to_environment(right["environment.name"]) if "environment.name" in right else []),
    ]


def _of_another_tenant(tenant: str, named: str) -> list[str]:
    return [f"tenant: the task says '{named}', its subject '{tenant}'"] if named != tenant else []


async def _unless_rejected(resolving: Awaitable[T], reasons: list[str]) -> T | None:
    """Awaited result; None if it raises Reject, whose reasons are added to `reasons`."""
    try:
        return await resolving
    except Reject as error:
        reasons.extend(error.reasons)
        return None


async def starting_adapter(connection: AsyncConnection, task: str, spec: TaskSpec) -> AdapterRef | None:
    """Adapter of version 0 under the new `task`'s name; None for a task that starts from its seed.

    The source task is locked, so that its next step does not delete the adapter.
    Raises: Reject, with the field and why the task cannot start from it.
    """
    if spec.start.task is None:
        return None
    found = await tasks.lock_own_task(connection, spec.tenant, spec.start.task)
    if found is None:
        raise Reject(f"start.task: tenant '{spec.tenant}' has no task '{spec.start.task}'")
    version = spec.start.version or found.version
    _check_likeness(found, spec)
    if found.version == 0:
        raise Reject(f"start.task: '{found.id}' has trained no version yet")
    if version > found.version:
        raise Reject(f"start.version: '{found.id}' has versions 1 to {found.version}, not {version}")
    adapter = await kept_adapter(connection, found, version)
    if adapter is None:
        raise Reject(f"start.version: version {version} of '{found.id}' is no longer stored, as its keep.adapters or the tenant's days say")
    return adapter.model_copy(update={"task": task, "version": 0})


def _check_likeness(other: Task, spec: TaskSpec) -> None:
    if other.spec.pool != spec.pool:
        raise Reject(f"start.task: '{other.id}' changes the base model of pool '{other.spec.pool}', this task that of '{spec.pool}'")
    for field in Lora.model_fields:
        theirs, ours = getattr(other.spec.lora, field), getattr(spec.lora, field)
        if (set(theirs), len(theirs)) != (set(ours), len(ours)) if field == "targets" else theirs != ours:
            raise Reject(f"start.task: '{other.id}' has lora.{field} {_said(theirs)}, this task {_said(ours)}; they must be equal")


def _said(value: object) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value).lower() if isinstance(value, bool) else f"{value}"


async def preview_task(context: HandlerContext, delivery: Delivery) -> None:
    """Handle a job of `jobs.preview.<tenant>`. Raises: Reject if it cannot be decoded; Retry if PostgreSQL is unavailable."""
    request, offer = delivery.read(PreviewTask), Catalog.of(context)
    async with context.database.transaction() as tx:
        answer = await _answer(tx, request, offer)
        reasons = answer["reasons"]
        assert isinstance(reasons, list)
        by = sender_of(delivery)
        tx.record(refused(by, str(reasons[0])) if reasons else accepted(by, ""))
        tx.emit_event(request.tenant, "none", "previewed", {"request": request.request, **answer})
    context.wake_relay()


async def _answer(tx: Transaction, request: PreviewTask, offer: Catalog) -> dict[str, JsonValue]:
    """Fields of a preview: `reasons` to reject, and `spec` and `sources` if the spec is valid. The environment itself is not queried."""
    found = await examine(tx, request.tenant, "none", request.spec, offer)
    reasons: list[JsonValue] = [shortened(reason) for reason in found.reasons]
    if found.spec is None:
        return {"reasons": reasons}
    origins: dict[str, JsonValue] = {**sources(request.spec, layers_of(request.spec, offer.pools), found.spec)}
    return {"reasons": reasons, "spec": as_json(found.spec), "sources": origins}
