"""Handles jobs, users' requests: submit, cancel, pause and resume here, all others in their own modules."""

from collections.abc import Sequence
from contextlib import suppress

import structlog

from common import streams
from common.bus import Delivery
from common.errors import Reject, Retry
from common.messages import ControlTask, SubmitTask, shortened
from common.pools import layers_of
from common.spec import complete, is_marked, mark_of
from scheduler_svc.accelerators.pool_jobs import move_pool
from scheduler_svc.base import deleted
from scheduler_svc.base.audit import Actor, accepted, refused
from scheduler_svc.base.context import HandlerContext, sender_of, verb_of
from scheduler_svc.base.scheduling_policy import SchedulingPolicy
from scheduler_svc.base.states import TaskState
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy import keys, limits
from scheduler_svc.tenancy.access import set_access
from scheduler_svc.tenancy.billing import budgets
from scheduler_svc.tenancy.billing.budgets import set_budget
from scheduler_svc.tenancy.billing.prices import set_price
from scheduler_svc.tenancy.rates import within_rate
from scheduler_svc.tenancy.requests import answered
from scheduler_svc.tenancy.tenants import set_tenant
from scheduler_svc.tenancy.webhooks.jobs import delete_webhook, set_webhook
from scheduler_svc.training.accounting import join_fair_queue
from scheduler_svc.training.aliases import delete_alias, set_alias
from scheduler_svc.training.environment_checks import check_environment, family_of
from scheduler_svc.training.queries import tasks
from scheduler_svc.training.results.dead_letters import resend_message
from scheduler_svc.training.steps import send_ready_steps
from scheduler_svc.training.submission import Catalog, examine, preview_task
from scheduler_svc.training.task_events import publish_status
from scheduler_svc.training.termination import end_task
from scheduler_svc.upkeep.deletion.deletion import delete_task, delete_tenant, prune_tasks
from scheduler_svc.uploads.package_jobs import delete_package, upload_file, upload_package

OWN_TRANSACTION = {
    "resend": resend_message,
    "delete": delete_task,
    "prune": prune_tasks,
    "preview": preview_task,
    "set-tenant": answered(set_tenant),
    "set-price": answered(set_price),
    "set-budget": answered(set_budget),
    "move-pool": answered(move_pool),
    "delete-tenant": delete_tenant,
    "set-access": answered(set_access),
    "upload": upload_package,
    "upload-file": upload_file,
    "delete-package": delete_package,
    "set-alias": answered(set_alias),
    "delete-alias": answered(delete_alias),
    "set-webhook": answered(set_webhook),
    "delete-webhook": answered(delete_webhook),
}
"""Verb → handler that runs in its own transaction, after the batch's other jobs: it reads from NATS, takes long, or only reads."""

log = structlog.get_logger()


async def handle_jobs(context: HandlerContext, deliveries: Sequence[Delivery]) -> None:
    """Handle a batch of jobs. Raises: Reject if a message is not a job; Retry if a store is unavailable."""
    offer = Catalog.of(context)
    cancelled: list[str] = []
    async with context.transaction() as tx:
        deliveries = await within_rate(tx, deliveries)
        own_transaction = [delivery for delivery in deliveries if verb_of(delivery) in OWN_TRANSACTION]
        await keys.note_use(tx.connection, [key for delivery in deliveries if (key := streams.token(delivery.subject, 3))])
        for delivery in deliveries:
            if delivery not in own_transaction and (ended := await take_job(tx, delivery, offer, context.policy)):
                cancelled.append(ended)
    for task in cancelled:
        await context.collector.purge(task)
    for delivery in own_transaction:
        await OWN_TRANSACTION[verb_of(delivery)](context, delivery)


async def take_job(tx: Transaction, delivery: Delivery, offer: Catalog, policy: SchedulingPolicy) -> str | None:
    """Handle one submit, cancel, pause or resume; returns the id of a task that it cancelled. Raises: Reject for any other verb."""
    verb = verb_of(delivery)
    if verb == "submit":
        job = delivery.read(SubmitTask)
        await _submit(tx, sender_of(delivery), job, offer)
    elif verb in ("cancel", "pause", "resume"):
        control = delivery.read(ControlTask)
        if await _control(tx, sender_of(delivery), control, policy) and verb == "cancel":
            return control.task
    else:
        raise Reject(f"no verb '{verb}' in {delivery.subject}; there are submit, cancel, pause, resume, {', '.join(OWN_TRANSACTION)}")
    return None


async def _submit(tx: Transaction, by: Actor, job: SubmitTask, offer: Catalog) -> None:
    present = await tasks.lock_own_task(tx.connection, job.tenant, job.task)  # not deleted before the query on deleted ones
    if present is not None:
        return await _repeat(tx, by, job, present, offer)
    if by.job is not None and streams.is_own_job(by.job) and not is_marked(job.task, job.tenant):
        return _refuse_id(tx, by, job, f"task: an id that '{job.tenant}' makes ends in '-{mark_of(job.tenant)}'; not '{job.task}'")
    if await tasks.is_others(tx.connection, job.tenant, job.task):
        return _refuse_id(tx, by, job, _not_available(job))
    found = await examine(tx, job.tenant, job.task, job.spec, offer)
    reasons = [*found.reasons]
    if await deleted.find(tx.connection, job.task) is not None:
        reasons.append(f"task: the id '{job.task}' was that of a task that is deleted; make a new one")
    if await deleted.find_tenant(tx.connection, job.tenant) is not None:
        reasons.append(f"tenant: '{job.tenant}' is deleted")
    if found.spec is None or reasons:
        return await _reject(tx, by, job, reasons)
    spec, family = found.spec, family_of(found.spec.environment.name, offer.families)
    ceiling = (await limits.limits_of(tx.connection, job.tenant))["priority_ceiling"]
    by_operator = await keys.is_operators(tx.connection, job.tenant, by.key)
    adding = tasks.add_task(
        tx.connection, job.task, spec, found.start, submission=job.digest, package=found.package, ceiling=ceiling, by_operator=by_operator
    )
    if not await adding:  # another replica was faster
        present = await tasks.lock_own_task(tx.connection, job.tenant, job.task)
        return _refuse_id(tx, by, job, _not_available(job)) if present is None else await _repeat(tx, by, job, present, offer)
    if await deleted.find_tenant(tx.connection, job.tenant) is not None:  # marked meanwhile; from here on the mark waits for this task
        raise Retry(f"tenant '{job.tenant}' is being deleted", delay_s=0.0)
    log.info("task_submitted", task=job.task, tenant=job.tenant, family=family)
    tx.record(accepted(by, job.task))
    await check_environment(tx, job.task, offer.families)
    await publish_status(tx, job.task)
    return None


async def _repeat(tx: Transaction, by: Actor, job: SubmitTask, present: tasks.Task, offer: Catalog) -> None:
    """Answer a submission under the id of a task of its tenant; a redelivered job is not refused, even if the catalog has changed."""
    if _describes(job, present, offer):
        log.info("job_repeated", task=job.task)
    else:
        await _reject(tx, by, job, [f"task: the id '{job.task}' is taken by another task; make a new one"])


def _describes(job: SubmitTask, present: tasks.Task, offer: Catalog) -> bool:
    """Whether `job` describes the task: the same submission, even if the pool's defaults have changed, or an equivalent spec."""
    with suppress(Reject):
        return present.submission == job.digest or complete(job.spec, layers_of(job.spec, offer.pools)) == present.spec
    return False


def _not_available(job: SubmitTask) -> str:
    return f"task: the id '{job.task}' is not available; choose another"


def _refuse_id(tx: Transaction, by: Actor, job: SubmitTask, objection: str) -> None:
    """Reject a job under an id that another tenant has or may have: the answer does not reveal whether the task exists, and writes no row.

    Ids in jobs sent with tenants' keys are checked by their form alone.
    """
    log.info("job_rejected", task=job.task, tenant=job.tenant, reasons=1)
    tx.record(refused(by, objection))
    tx.answer(job.tenant, job.task, "rejected", {"reasons": [objection]})


async def _reject(tx: Transaction, by: Actor, job: SubmitTask, reasons: list[str]) -> None:
    tx.record(refused(by, reasons[0]))
    log.info("job_rejected", task=job.task, tenant=job.tenant, reasons=len(reasons))
    tx.emit_event(job.tenant, job.task, "rejected", {"reasons": [shortened(reason) for reason in reasons]})


async def _control(tx: Transaction, by: Actor, job: ControlTask, policy: SchedulingPolicy) -> bool:
    """Cancel, pause or resume the task; False if the tenant has no such task. Another tenant's task gives the same answer."""
    found = await tasks.lock_own_task(tx.connection, job.tenant, job.task)
    if found is None:
        log.warning("job_for_unknown_task", verb=by.verb, task=job.task, tenant=job.tenant)
        objection = f"task: no task '{job.task}' of tenant '{job.tenant}'"
        tx.record(refused(by, objection))
        tx.answer(job.tenant, job.task, "rejected", {"reasons": [objection]})
        return False
    tx.record(accepted(by, job.task))
    if by.verb == "cancel":
        await end_task(tx, found, TaskState.CANCELLED, reason=job.reason or "cancelled by its owner")
    elif by.verb == "pause":
        if await tasks.transition_task(tx.connection, job.task, [TaskState.RUNNING], TaskState.PAUSED, reason=job.reason):
            tx.emit_event(job.tenant, job.task, "paused")
            await publish_status(tx, job.task)
        else:
            await budgets.leave_paused(tx.connection, job.task)
    elif await tasks.transition_task(tx.connection, job.task, [TaskState.PAUSED], TaskState.RUNNING):
        await join_fair_queue(tx.connection, found)
        tx.emit_event(job.tenant, job.task, "resumed")
        await publish_status(tx, job.task)
        await send_ready_steps(tx, await tasks.lock_tasks(tx.connection, [job.task]), policy)
    return True
