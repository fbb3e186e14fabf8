"""Handles environment checks: starts the task, or rejects it with the environment's objection."""

from collections.abc import Sequence

from pydantic import JsonValue

from common.bus import Delivery
from common.errors import Reject
from common.messages import EnvironmentChecked, ReplicaReport
from common.spec import TaskSpec
from scheduler_svc.base import audit
from scheduler_svc.base.context import HandlerContext
from scheduler_svc.base.states import TaskState
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy import tenants
from scheduler_svc.training import evaluations
from scheduler_svc.training.decisions.replica_support import tool_objection
from scheduler_svc.training.fair_queue import join_fair_queue
from scheduler_svc.training.intake.environment_resolution import request_waiting_checks
from scheduler_svc.training.queries import tasks
from scheduler_svc.training.task_events import publish_status
from scheduler_svc.training.termination import end_task


async def handle_environment_checks(context: HandlerContext, deliveries: Sequence[Delivery]) -> None:
    async with context.transaction() as tx:
        answers = [delivery.read(EnvironmentChecked) for delivery in deliveries]
        for answer in answers:
            await environment_checked(tx, answer, context.replicas.reports)
        for tenant in sorted({answer.tenant for answer in answers}):
            await request_waiting_checks(tx, tenant, context.replicas.families)


async def environment_checked(tx: Transaction, answer: EnvironmentChecked, replicas: Sequence[ReplicaReport] = ()) -> None:
    """Start the task, or reject it with the environment's objection, or that of its pool's samplers to tools.

    Raises: Reject when the answer names another tenant.
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
    tx.emit_event(task.tenant, task.id, "accepted", {"spec": _effective(task.spec), **made})
    await publish_status(tx, task.id)


def _effective(spec: TaskSpec) -> dict[str, JsonValue]:
    """Values that the task runs with, the pool's defaults among them, without the environment's, which the task gave itself."""
    return spec.model_dump(mode="json", exclude={"environment": True, "evaluation": {"options"}})
