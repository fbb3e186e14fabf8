"""Handles uploads and deletions of tenants' packages and files; cleans up abandoned, refused and interrupted ones."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

from pydantic import JsonValue
from sqlalchemy.ext.asyncio import AsyncConnection

from common.blobs import Blobs
from common.bus import Bus, Delivery
from common.messages import DeletePackage, PackageChecked, UploadFile, UploadPackage
from scheduler_svc.base.audit import Actor, accepted, refused
from scheduler_svc.base.context import HandlerContext, sender_of
from scheduler_svc.base.database import Database
from scheduler_svc.base.states import PackageState
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.uploads import package_queries as packages
from scheduler_svc.uploads.files import complete_file
from scheduler_svc.uploads.package_queries import Key, Package
from scheduler_svc.uploads.packages import (
    BeingDeleted,
    UploadedPart,
    complete,
    finish_deletion,
    give_up,
    keep_part,
    request_waiting_checks,
    settle,
)

FILE_S = 600.0
"""Maximum seconds to check and store a file once all parts have arrived."""


async def upload_package(context: HandlerContext, delivery: Delivery) -> None:
    """Handle a job of `jobs.upload.<tenant>`: store a part; after the last part, complete the package.

    Raises: Reject if it cannot be decoded; Retry if NATS or PostgreSQL is unavailable.
    """
    part = delivery.read(UploadPackage)
    if await _store_part(context, part, sender_of(delivery)):
        async with context.transaction() as tx:
            await complete(tx, (part.tenant, part.digest), Blobs(context.bus), context.replicas.families)


async def upload_file(context: HandlerContext, delivery: Delivery) -> None:
    """Handle a job of `jobs.upload-file.<tenant>`: store a part; after the last part, complete the file.

    Raises: Reject if it cannot be decoded; Retry if NATS or PostgreSQL is unavailable.
    """
    part = delivery.read(UploadFile)
    if await _store_part(context, part, sender_of(delivery)):
        async with context.transaction(patience_s=FILE_S) as tx:
            await complete_file(tx, (part.tenant, part.digest), Blobs(context.bus))


async def _store_part(context: HandlerContext, part: UploadedPart, by: Actor) -> bool:
    """Store a part; returns whether all parts have arrived."""
    with suppress(BeingDeleted):
        async with context.transaction() as tx:
            return await keep_part(tx, part, by)
    async with context.transaction() as tx:
        await finish_deletion(tx, (part.tenant, part.digest), Blobs(context.bus))
    async with context.transaction() as tx:
        return await keep_part(tx, part, by)


async def delete_package(context: HandlerContext, delivery: Delivery) -> None:
    """Handle a job of `jobs.delete-package.<tenant>`.

    Raises: Reject if it cannot be decoded; Retry if NATS or PostgreSQL is unavailable.
    """
    job = delivery.read(DeletePackage)
    async with context.transaction() as tx:
        found = await packages.beginning_with(tx.connection, job.tenant, job.digest)
        package = await packages.lock(tx.connection, (job.tenant, found[0])) if len(found) == 1 else None
        objection = await _objection(tx, job, len(found), package)
        if objection is not None:
            answer: dict[str, JsonValue] = {"request": job.request, "digest": job.digest, "reasons": [objection]}
            tx.record(refused(sender_of(delivery), objection))
            tx.emit_event(job.tenant, "none", "package-deleted", answer)
            return
        assert package is not None
        await give_up(tx, package, [job.request])
        tx.record(accepted(sender_of(delivery), package.digest))
    async with context.transaction() as tx:
        await finish_deletion(tx, (package.tenant, package.digest), Blobs(context.bus))


async def _objection(tx: Transaction, job: DeletePackage, found: int, package: Package | None) -> str | None:
    if package is None:
        several = f"package: several packages of tenant '{job.tenant}' begin with '{job.digest}'; give more digits"
        return several if found > 1 else f"package: no package '{job.digest}' of tenant '{job.tenant}'; `marlaas envs` lists all"
    if package.state == PackageState.DELETING:  # a redelivered job
        return None
    users = await packages.live_tasks(tx.connection, package)
    if not users:
        return None
    one = "1 task that has not ended uses" if users == 1 else f"{users} tasks that have not ended use"
    return f"package: {one} '{package.digest[:12]}'; end them first with `marlaas cancel`, or wait until they end"


async def handle_package_checks(context: HandlerContext, deliveries: Sequence[Delivery]) -> None:
    """Settle checked packages, and request further checks of their tenants.

    Raises: Reject if a message cannot be decoded; Retry if PostgreSQL is unavailable.
    """
    async with context.transaction() as tx:
        answers = [delivery.read(PackageChecked) for delivery in deliveries]
        for answer in answers:
            await settle(tx, answer)
        for tenant in sorted({answer.tenant for answer in answers}):
            await request_waiting_checks(tx, context.replicas.families, tenant)


UPLOADING_S = 3_600.0
"""Seconds after an upload's last part until its parts are deleted."""
REFUSED_S = 86_400.0
"""Seconds until a refused package is deleted; until then its reason can be read."""
ABANDONED = f"package: parts of it were missing for {UPLOADING_S / 60:.0f} minutes; send it again"


async def clean_packages(database: Database, bus: Bus, wake_relay: Callable[[], None]) -> None:
    """Delete abandoned, refused and interrupted uploads. Raises: Retry if NATS or PostgreSQL is unavailable."""
    find = partial(packages.left_behind, uploading_s=UPLOADING_S, refused_s=REFUSED_S)
    if await _delete_found(database, bus, find, abandoned=ABANDONED):
        wake_relay()


async def delete_packages_of(database: Database, bus: Bus, tenant: str) -> None:
    """Delete all packages of a deleted tenant. Raises: Retry if a store is unavailable."""
    await _delete_found(database, bus, partial(packages.keys_of, tenant=tenant))


async def _delete_found(database: Database, bus: Bus, find: Callable[[AsyncConnection], Awaitable[list[Key]]], abandoned: str = "") -> bool:
    """Delete packages that `find` returns both before and after they are locked; returns whether any was found.

    `abandoned`: reason for clients that wait for an upload.
    """
    blobs = Blobs(bus)
    async with database.transaction() as tx:
        found = await find(tx.connection)
    for key in found:
        async with database.transaction() as tx:
            package = await packages.lock(tx.connection, key)
            if package is not None and package.state != PackageState.DELETING and key in await find(tx.connection):
                await give_up(tx, package, reason=abandoned if package.state == PackageState.UPLOADING else "")
        async with database.transaction() as tx:
            await finish_deletion(tx, key, blobs)
    return bool(found)
