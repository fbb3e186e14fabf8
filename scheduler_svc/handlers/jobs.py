"""Submit, cancel, pause, resume: what users ask for."""

from dataclasses import dataclass

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.bus import Delivery
from common.errors import Reject
from common.messages import ControlTask, SubmitTask, shortened
from common.pools import Pools, objections
from common.spec import TaskSpec, parse_spec
from scheduler_svc.decisions.scheduling_policy import SchedulingPolicy
from scheduler_svc.dispatch.steps import send_ready_steps
from scheduler_svc.lifecycle.environment_resolution import check_environment, family_of
from scheduler_svc.lifecycle.fair_queue import join_fair_queue
from scheduler_svc.lifecycle.task_events import announce, publish_status
from scheduler_svc.lifecycle.termination import end_task
from scheduler_svc.lifecycle.warm_start import starting_adapter
from scheduler_svc.store.queries import deleted, tasks
from scheduler_svc.store.states import TaskState

log = structlog.get_logger()


@dataclass(frozen=True)
class Offer:
    """What the deployment offers at the moment: base models, and the environments that live replicas serve."""

    pools: Pools
    families: set[str]

    def objections(self, spec: TaskSpec) -> list[str]:
        """Why this task cannot be taken; empty when it can, as far as is known."""
        found = objections(spec, self.pools)
        name = spec.environment.name
        if self.families and family_of(name, self.families) is None:
            found.append(f"environment.name: no environment '{name}' here; `marlaas envs` lists those installed")
        return found


async def take_job(connection: AsyncConnection, delivery: Delivery, offer: Offer, policy: SchedulingPolicy) -> str | None:
    """Handle one message of `jobs.<verb>.<tenant>`; returns the task that is over with it. Raises: Reject when it is not one."""
    verb, tenant = streams.token(delivery.subject, 1), streams.token(delivery.subject, 2) or ""
    if verb == "submit":
        job = delivery.read(SubmitTask)
        same_tenant(tenant, job.tenant)
        await _submit(connection, job, offer)
    elif verb in ("cancel", "pause", "resume"):
        control = delivery.read(ControlTask)
        same_tenant(tenant, control.tenant)
        if await _control(connection, verb, control, policy) and verb == "cancel":
            return control.task
    else:
        raise Reject(f"no verb '{verb}' in {delivery.subject}; there are submit, cancel, pause, resume, resend, delete and prune")
    return None


async def _submit(connection: AsyncConnection, job: SubmitTask, offer: Offer) -> None:
    try:
        spec = parse_spec(job.spec)
    except Reject as error:
        return await _reject(connection, job, [str(error)])
    await tasks.lock_tasks(connection, [job.task])  # or it could be deleted between the next two looks
    present = await tasks.find_task(connection, job.task)
    reasons = offer.objections(spec) if present is None else []  # what was taken once is not judged by what is offered now
    if spec.tenant != job.tenant:
        reasons.append(f"tenant: the task says '{spec.tenant}', its subject '{job.tenant}'")
    if present is None and await deleted.find(connection, job.task) is not None:
        reasons.append(f"task: the id '{job.task}' was that of a task that is deleted; make a new one")
    if reasons:
        return await _reject(connection, job, reasons)
    family = family_of(spec.environment.name, offer.families)
    if present is None:
        try:
            start = await starting_adapter(connection, job.task, spec)
        except Reject as error:
            return await _reject(connection, job, [str(error)])
        if not await tasks.add_task(connection, job.task, spec, start):  # another replica was faster
            present = await tasks.find_task(connection, job.task)
    if present is not None:
        if present.spec != spec:
            return await _reject(connection, job, [f"task: the id '{job.task}' is taken by another task; make a new one"])
        log.info("job_repeated", task=job.task)
        return None
    log.info("task_submitted", task=job.task, tenant=job.tenant, family=family)
    await check_environment(connection, job.task, job.tenant, spec.environment.name, offer.families)
    await publish_status(connection, job.task)
    return None


async def _reject(connection: AsyncConnection, job: SubmitTask, reasons: list[str]) -> None:
    log.info("job_rejected", task=job.task, tenant=job.tenant, reasons=reasons)
    announce(connection, job.tenant, job.task, "rejected", {"reasons": [shortened(reason) for reason in reasons]})


async def _control(connection: AsyncConnection, verb: str, job: ControlTask, policy: SchedulingPolicy) -> bool:
    """False when the tenant has no such task."""
    found = next(iter(await tasks.lock_tasks(connection, [job.task])), None)
    if found is None or found.tenant != job.tenant:
        log.warning("job_for_unknown_task", verb=verb, task=job.task, tenant=job.tenant)
        announce(connection, job.tenant, job.task, "rejected", {"reasons": [f"task: no task '{job.task}' of tenant '{job.tenant}'"]})
        return False
    if verb == "cancel":
        await end_task(connection, found, TaskState.CANCELLED, reason=job.reason or "cancelled by its owner")
    elif verb == "pause":
        if await tasks.transition_task(connection, job.task, [TaskState.RUNNING], TaskState.PAUSED, reason=job.reason):
            announce(connection, job.tenant, job.task, "paused")
            await publish_status(connection, job.task)
    elif await tasks.transition_task(connection, job.task, [TaskState.PAUSED], TaskState.RUNNING):
        await join_fair_queue(connection, found)
        announce(connection, job.tenant, job.task, "resumed")
        await publish_status(connection, job.task)
        await send_ready_steps(connection, await tasks.lock_tasks(connection, [job.task]), policy)
    return True


def same_tenant(subject: str, body: str) -> None:
    """Raises: Reject when a job's subject names another tenant than the job."""
    if subject != body:
        raise Reject(f"the subject names tenant '{subject}', the message '{body}'")
