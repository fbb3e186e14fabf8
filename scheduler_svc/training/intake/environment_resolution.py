"""Environment resolution: finds the queue of a task's environment and has the environment's options checked."""

from common import streams
from common.messages import FILE_FAMILY, OWN_FAMILY, CheckEnvironment
from common.spec import MAIN_PROTOCOL
from scheduler_svc.base.states import TaskState
from scheduler_svc.base.transaction import OutboxMessage, Transaction
from scheduler_svc.training.queries import tasks
from scheduler_svc.training.task_events import publish_status
from scheduler_svc.uploads.packages import CHECKS_PER_TENANT


async def request_waiting_checks(tx: Transaction, tenant: str, families: set[str]) -> None:
    """Request checks of the tenant's oldest tasks that wait for one, as many as may be."""
    for task in await tasks.lock_unchecked(tx.connection, tenant, most=CHECKS_PER_TENANT):
        await check_environment(tx, task.id, task.tenant, task.spec.environment.name, families)


async def resolve_environment(tx: Transaction, task_id: str, families: set[str]) -> None:
    """Request the check of a waiting task's environment, once an env replica serves it."""
    for task in await tasks.lock_tasks(tx.connection, [task_id]):
        if task.state == TaskState.SUBMITTED and task.family is None:
            await check_environment(tx, task.id, task.tenant, task.spec.environment.name, families)


async def check_environment(tx: Transaction, task: str, tenant: str, name: str, families: set[str]) -> None:
    """Request a check of the task's options from the environment's family.

    The task waits while no replica serves it, or while CHECKS_PER_TENANT of its tenant's tasks are checked there.
    """
    family, found = family_of(name, families), await tasks.find_task(tx.connection, task)
    assert found is not None
    if family is None:
        reason = f"waiting for an environment replica that serves '{name}'"
    elif await tasks.checks_requested(tx.connection, tenant, family) >= CHECKS_PER_TENANT:
        reason = f"waiting while {CHECKS_PER_TENANT} other tasks of its tenant are checked"
    else:
        reason = ""
    if family is None or reason:
        if found.reason != reason:
            await tasks.set_reason(tx.connection, task, reason)
            await publish_status(tx, task)
        return
    await tasks.set_family(tx.connection, task, family)
    spec = found.spec
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
    """Queue of an environment's turns: its entry point's name, `own` for a tenant's package, or `module` for `module:attribute`."""
    head = name.split(":")[0]
    if head in families or head in (OWN_FAMILY, FILE_FAMILY):
        return head if head in families else None
    return "module" if ":" in name and "module" in families else None
