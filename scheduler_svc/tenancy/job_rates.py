"""Jobs beyond a tenant's rate, and the answers that they get. Those of operators have no limit: one of them raises it."""

from collections.abc import Callable, Sequence

import structlog
from pydantic import JsonValue

from common import streams
from common.bus import Delivery
from common.messages import (
    ControlTask,
    DeleteAlias,
    DeletePackage,
    DeleteWebhook,
    PreviewTask,
    PruneTasks,
    ResendLetter,
    SetAlias,
    SetWebhook,
    SubmitTask,
    UploadFile,
    UploadPackage,
)
from scheduler_svc.base.audit import refused
from scheduler_svc.base.context import sender_of, verb_of
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy import rates

log = structlog.get_logger()

Refuse = Callable[[Transaction, Delivery, str], None]


async def within_rate(tx: Transaction, deliveries: Sequence[Delivery]) -> list[Delivery]:
    """The jobs that fit the rate of their tenants; others are answered. Raises: Reject when one of these is no job."""
    taken = [delivery for delivery in deliveries if verb_of(delivery) not in REFUSALS]
    counted = [delivery for delivery in deliveries if verb_of(delivery) in REFUSALS]
    for tenant in sorted({_tenant(delivery) for delivery in counted}):
        own = [delivery for delivery in counted if _tenant(delivery) == tenant]
        grant = await rates.take(tx.connection, tenant, "jobs", len(own))
        taken += own[: grant.granted]
        for delivery in own[grant.granted :]:
            log.info("job_refused", verb=verb_of(delivery), tenant=tenant, limit="jobs_per_minute")
            reason = grant.refusal("jobs", tenant)
            REFUSALS[verb_of(delivery)](tx, delivery, reason)
            tx.record(refused(sender_of(delivery), reason))
    return [delivery for delivery in deliveries if delivery in taken]


def _about_a_task(tx: Transaction, delivery: Delivery, reason: str) -> None:
    job = delivery.read(SubmitTask if verb_of(delivery) == "submit" else ControlTask)
    verb: dict[str, JsonValue] = {"verb": "delete"} if verb_of(delivery) == "delete" else {}
    tx.answer(job.tenant, job.task, "rejected", {**verb, "reasons": [reason]})  # the id may be another tenant's


def _preview(tx: Transaction, delivery: Delivery, reason: str) -> None:
    _about_no_task(tx, delivery.read(PreviewTask), "previewed", reason)


def _prune(tx: Transaction, delivery: Delivery, reason: str) -> None:
    _about_no_task(tx, delivery.read(PruneTasks), "pruned", reason)


def _upload(tx: Transaction, delivery: Delivery, reason: str) -> None:
    _about_no_task(tx, delivery.read(UploadPackage), "package", reason)


def _upload_file(tx: Transaction, delivery: Delivery, reason: str) -> None:
    _about_no_task(tx, delivery.read(UploadFile), "package", reason)


def _delete_package(tx: Transaction, delivery: Delivery, reason: str) -> None:
    _about_no_task(tx, delivery.read(DeletePackage), "package-deleted", reason)


ABOUT_NAMES: dict[str, type[SetAlias | DeleteAlias | SetWebhook | DeleteWebhook]] = {
    "set-alias": SetAlias,
    "delete-alias": DeleteAlias,
    "set-webhook": SetWebhook,
    "delete-webhook": DeleteWebhook,
}


def _name(tx: Transaction, delivery: Delivery, reason: str) -> None:
    """A job about an alias or a webhook."""
    job = delivery.read(ABOUT_NAMES[verb_of(delivery)])
    tx.emit_event(job.tenant, "none", verb_of(delivery).partition("-")[2], {"request": job.request, "code": "busy", "reasons": [reason]})


def _about_no_task(
    tx: Transaction, job: PreviewTask | PruneTasks | UploadPackage | UploadFile | DeletePackage, event: str, reason: str
) -> None:
    tx.emit_event(job.tenant, "none", event, {"request": job.request, "reasons": [reason]})


def _resend(tx: Transaction, delivery: Delivery, reason: str) -> None:
    job = delivery.read(ResendLetter)
    tx.emit_event(job.tenant, "none", "rejected", {"letter": job.letter, "reasons": [reason]})


REFUSALS: dict[str, Refuse] = dict.fromkeys(("submit", "cancel", "pause", "resume", "delete"), _about_a_task) | {
    "preview": _preview,
    "prune": _prune,
    "resend": _resend,
    "upload": _upload,
    "upload-file": _upload_file,
    "delete-package": _delete_package,
    **dict.fromkeys(ABOUT_NAMES, _name),
}
"""Verbs that are counted → the answer beyond the rate."""


def _tenant(delivery: Delivery) -> str:
    return streams.token(delivery.subject, 2) or ""
