"""Environment checks: finds the queue of a task's environment and has its options checked; the answer starts or rejects the task.

A pool without live samplers raises no objection to a task's arguments of the chat template. Its sampler then checks the arguments at the
first prompt, and voids the group with the reason.
"""

from collections.abc import Iterable, Iterator, Sequence

from pydantic import JsonValue

from common import streams
from common.bus import Delivery
from common.errors import Reject
from common.messages import FILE_FAMILY, OWN_FAMILY, CheckEnvironment, EnvironmentChecked, ReplicaReport
from common.spec import MAIN_PROTOCOL, TaskSpec, unknown_arguments
from scheduler_svc.base import audit
from scheduler_svc.base.context import HandlerContext
from scheduler_svc.base.states import TaskState
from scheduler_svc.base.transaction import OutboxMessage, Transaction
from scheduler_svc.tenancy import tenants
from scheduler_svc.training import evaluations
from scheduler_svc.training.accounting import join_fair_queue
from scheduler_svc.training.queries import tasks
from scheduler_svc.training.task_events import publish_status
from scheduler_svc.training.termination import end_task
from scheduler_svc.uploads.packages import CHECKS_PER_TENANT


async def request_waiting_checks(tx: Transaction, tenant: str, families: set[str]) -> None:
    """Request checks for the tenant's oldest tasks without one, up to CHECKS_PER_TENANT per environment."""
    for task in await tasks.lock_unchecked(tx.connection, tenant, most=CHECKS_PER_TENANT):
        await check_environment(tx, task.id, families)


async def resolve_environment(tx: Transaction, task_id: str, families: set[str]) -> None:
    """Request the environment check of a submitted task, once an env replica serves the environment."""
    for task in await tasks.lock_tasks(tx.connection, [task_id]):
        if task.state == TaskState.SUBMITTED and task.family is None:
            await check_environment(tx, task.id, families)


async def check_environment(tx: Transaction, task: str, families: set[str]) -> None:
    """Request a check of the task's options from the environment's family.

    The task waits while no replica serves the family, or while CHECKS_PER_TENANT of its tenant's tasks are being checked there.
    They are counted without a lock, so concurrent transactions may each request one more.
    """
    found = await tasks.find_task(tx.connection, task)
    assert found is not None
    spec, tenant, name = found.spec, found.tenant, found.spec.environment.name
    family = family_of(name, families)
    if family is None:
        reason = f"waiting for an environment replica that serves '{name}'"
    elif await tasks.checks_requested(tx.connection, tenant, family) >= CHECKS_PER_TENANT:
        reason = f"waiting while {CHECKS_PER_TENANT} other tasks of its tenant are checked"
    else:
        reason = ""
    if family is None or reason:
        if found.reason != reason:
            await tasks.change(tx.connection, task, reason=reason)
            await publish_status(tx, task)
        return
    await tasks.change(tx.connection, task, family=family, reason="")
    held_out = {protocol.name: protocol for protocol in spec.evaluation.protocols if protocol.options}
    alone = None if spec.evaluation.protocol else held_out.get(MAIN_PROTOCOL)
    message = CheckEnvironment(
        tenant=tenant,
        task=task,
        family=family,
        environment=spec.environment,
        seed=spec.seed,
        evaluation=spec.environment_of(alone) if alone else None,
        weight=found.weight,
        by_operator=found.by_operator,
        package=found.package,
        protocols={} if alone else {name: protocol.options for name, protocol in held_out.items()},
    )
    tx.post([OutboxMessage(streams.check(family, task), message, f"{task}:check")])


def family_of(name: str, families: set[str]) -> str | None:
    """Family (queue) of an environment: its entry point's name, `own` for a tenant's package, or `module` for `module:attribute`.

    None if no live replica serves it.
    """
    head = name.split(":")[0]
    if head in families or head in (OWN_FAMILY, FILE_FAMILY):
        return head if head in families else None
    return "module" if ":" in name and "module" in families else None


async def handle_environment_checks(context: HandlerContext, deliveries: Sequence[Delivery]) -> None:
    async with context.transaction() as tx:
        answers = [delivery.read(EnvironmentChecked) for delivery in deliveries]
        for answer in answers:
            await environment_checked(tx, answer, context.replicas.reports)
        for tenant in sorted({answer.tenant for answer in answers}):
            await request_waiting_checks(tx, tenant, context.replicas.families)


async def environment_checked(tx: Transaction, answer: EnvironmentChecked, replicas: Sequence[ReplicaReport] = ()) -> None:
    """Start the task, or reject it with the objection of its environment, or of its pool's samplers to tools.

    Raises: Reject if the answer names another tenant.
    """
    locked = await tasks.lock_tasks(tx.connection, [answer.task])
    if not locked or locked[0].state != TaskState.SUBMITTED:
        return
    task = locked[0]
    if answer.tenant != task.tenant:
        raise Reject(f"the check names tenant '{answer.tenant}', which is not that of task {task.id}")
    objection = answer.objection or (tool_objection(task.spec.pool, replicas) if answer.has_tools else None)
    if objection is not None:
        tx.record(audit.rejected(task.tenant, task.id, "environment"))
        await end_task(tx, task, TaskState.REJECTED, reason=objection, data={"reasons": [f"environment: {objection}"]})
        return
    await join_fair_queue(tx.connection, task)
    await tasks.transition_task(tx.connection, task.id, [TaskState.SUBMITTED], TaskState.RUNNING)
    await evaluations.plan(tx.connection, task)
    made: dict[str, JsonValue] = {"new_tenant": True} if await tenants.was_made_by(tx.connection, task.id) else {}
    # Includes the pool's defaults, not the environment's, which the submission names.
    effective = task.spec.model_dump(mode="json", exclude={"environment": True, "evaluation": {"options"}})
    tx.emit_event(task.tenant, task.id, "accepted", {"spec": effective, **made})
    await publish_status(tx, task.id)


def tool_objection(pool: str, reports: Iterable[ReplicaReport]) -> str | None:
    """Why a task with tools cannot be sampled in `pool`; None if it can, or if no live sampler reports on it."""
    if any(report.service == "rollout" and report.pool == pool and report.takes_answers is False for report in reports):
        return f"it has tools, and the chat template of pool '{pool}' takes no answers of tools; choose another pool, or list none"
    return None


def sampler_objections(spec: TaskSpec, reports: Iterable[ReplicaReport]) -> Iterator[str]:
    """Objections of live samplers in the task's pool to its `sampling` section."""
    complaints: set[str] = set()
    for report in reports:
        if report.service == "rollout" and report.pool == spec.pool:
            complaints.update(unknown_arguments(spec.sampling.template, report.template_variables))
    yield from sorted(complaints)
