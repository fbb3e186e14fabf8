"""Packages and files of tenants: uploads in parts, checks of packages by the environment service, and deletions. `files.py` checks files.

A package's row is locked while its blob is stored or deleted, so the two never overlap; both are safe to repeat. Every answer
is an event `package` or `package-deleted` without a task, and contains the id of a request.
"""

import asyncio
import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import replace

import structlog
from pydantic import JsonValue

from common import streams
from common.blobs import Blobs
from common.errors import Retry
from common.limits import sentence
from common.messages import (
    MAX_FILE_BYTES,
    MAX_PACKAGE_BYTES,
    OWN_FAMILY,
    CheckPackage,
    PackageChecked,
    UploadFile,
    UploadPackage,
    own_name,
    shortened,
)
from common.resilience import crashpoints
from common.spec import OWN_PATTERN
from scheduler_svc.base.audit import Actor, accepted, refused
from scheduler_svc.base.states import PackageKind, PackageState
from scheduler_svc.base.transaction import OutboxMessage, Transaction
from scheduler_svc.tenancy import limits
from scheduler_svc.uploads import package_queries as packages
from scheduler_svc.uploads.own_environments import NO_REPLICA
from scheduler_svc.uploads.package_queries import MAX_REQUESTS, Key, Package

CHECKS_PER_TENANT = 4
"""Maximum concurrent checks of one tenant's tasks per family: an environment replica takes checks in order, eight concurrently."""
UPLOADING_BYTES = {PackageKind.PACKAGE: 4 * MAX_PACKAGE_BYTES, PackageKind.FILE: 2 * MAX_FILE_BYTES}
"""Maximum declared bytes of a tenant's incomplete packages, and of its incomplete files."""
COMMAND = {PackageKind.PACKAGE: "envs", PackageKind.FILE: "files"}
MAX_ENVIRONMENTS = 64
"""Maximum environments of a package: answers list them all."""
OTHER_DIGEST = "package: the upload has the SHA-256 {found}, not the announced one; upload it again"
RESEND_S = 900.0
"""Seconds without an answer after which a check is resent."""

log = structlog.get_logger()


class BeingDeleted(Retry):
    """A deletion of the same package is in progress; `finish_deletion` completes an interrupted one."""


# ------------------------------------------------------------------------------------------------------------- uploads


UploadedPart = UploadPackage | UploadFile


def kind_of(part: UploadedPart) -> PackageKind:
    return PackageKind.FILE if isinstance(part, UploadFile) else PackageKind.PACKAGE


async def keep_part(tx: Transaction, part: UploadedPart, by: Actor) -> bool:
    """Store one part of a wheel or file; returns whether all parts have arrived. A refused upload, or that of a known wheel, is answered.

    Raises: BeingDeleted while an earlier upload of the same wheel is being deleted.
    """
    key = part.tenant, part.digest
    package = await packages.lock(tx.connection, key) or await _begin(tx, part, by)
    if package is None:
        return False
    if package.state == PackageState.DELETING:
        raise BeingDeleted(f"package {part.digest[:12]} is being deleted", delay_s=0.5)
    if package.kind != kind_of(part):
        return _refuse(tx, part, by, f"package: these bytes are here as a {package.kind}; delete that first")
    if package.size_bytes != part.size_bytes:
        return _refuse(tx, part, by, f"package: it has {part.size_bytes} bytes here, {package.size_bytes} in an upload that began before")
    if part.request not in package.requests:
        package = await _join(tx, package, part, by)
    if package is None or package.state != PackageState.UPLOADING:  # already answered, or answered once its check ends
        return False
    if not await packages.keep_part(tx.connection, key, part.offset, part.data):
        delete = f"`marlaas {COMMAND[package.kind]} delete {part.digest[:12]}` drops that"
        return _refuse(tx, part, by, f"package: its part at {part.offset} differs from the one of an upload that began before; {delete}")
    await packages.change(tx.connection, key)
    return await packages.kept_bytes(tx.connection, key) == package.size_bytes


async def _begin(tx: Transaction, part: UploadedPart, by: Actor) -> Package | None:
    """The package created for a first part; None if it is refused."""
    key = part.tenant, part.digest
    if not await packages.lock_tenant(tx.connection, part.tenant):
        _refuse(tx, part, by, f"tenant: '{part.tenant}' is deleted")
        return None
    if (present := await packages.lock(tx.connection, key)) is not None:  # another replica was faster
        return present
    objection = await _limit_met(tx, part) or await _too_many_parts(tx, part)
    if objection:
        _refuse(tx, part, by, objection)
        return None
    await packages.add(tx.connection, key, part.size_bytes, kind_of(part), part.name if isinstance(part, UploadFile) else "")
    return await packages.lock(tx.connection, key)


async def _limit_met(tx: Transaction, part: UploadedPart) -> str:
    allowed = await limits.limits_of(tx.connection, part.tenant)
    used = await limits.used_by(tx.connection, part.tenant)
    most, room = allowed["max_packages"], allowed["max_stored_bytes"]
    if most is not None and used["max_packages"] >= most:
        return sentence("max_packages", most, used["max_packages"], part.tenant)
    if room is not None and used["max_stored_bytes"] + part.size_bytes > room:
        return sentence("max_stored_bytes", room, used["max_stored_bytes"], part.tenant, needed=part.size_bytes)
    return ""


async def _too_many_parts(tx: Transaction, part: UploadedPart) -> str:
    announced, most = await packages.announced_bytes(tx.connection, part.tenant, kind_of(part)), UPLOADING_BYTES[kind_of(part)]
    if announced + part.size_bytes <= most:
        return ""
    return f"package: uploads of {announced} bytes are not complete, and at most {most} may be; complete or delete some first"


async def _join(tx: Transaction, package: Package, part: UploadedPart, by: Actor) -> Package | None:
    """Add this request to those that the package answers. A package refused earlier gets a new upload; None if that is refused too."""
    joined = replace(package, requests=[*package.requests, part.request][-MAX_REQUESTS:])
    if package.state == PackageState.REFUSED:
        if objection := await _too_many_parts(tx, part):
            _refuse(tx, part, by, objection)
            return None
        joined = replace(joined, state=PackageState.UPLOADING, objection="")
    key = package.tenant, package.digest
    await packages.change(tx.connection, key, requests=joined.requests, state=joined.state, objection=joined.objection)
    tx.record(accepted(by, package.digest))
    if joined.state != PackageState.UPLOADING:
        report(tx, replace(joined, requests=[part.request]))
    return joined


def _refuse(tx: Transaction, part: UploadedPart, by: Actor, objection: str) -> bool:
    """Refuse one request. Returns False, which callers return as `keep_part`'s result: the upload is not complete."""
    log.info("upload_refused", tenant=part.tenant, package=part.digest[:12])
    tx.record(refused(by, objection))
    tx.emit_event(part.tenant, "none", "package", {"request": part.request, "digest": part.digest, "reasons": [objection]})
    return False


async def complete(tx: Transaction, key: Key, blobs: Blobs, families: Collection[str]) -> None:
    """Store the wheel once all parts have arrived, and request its check. Raises: Unavailable if the blob store is."""
    package = await packages.lock(tx.connection, key)
    if package is None or package.state != PackageState.UPLOADING or await packages.kept_bytes(tx.connection, key) < package.size_bytes:
        return
    wheel = await packages.content(tx.connection, key)
    found = (await asyncio.to_thread(hashlib.sha256, wheel)).hexdigest()
    if found != package.digest:
        await packages.delete_package(tx.connection, key)
        emit(tx, package, "package", {"reasons": [OTHER_DIGEST.format(found=found)]})
        return
    await blobs.put(package.wheel, wheel)
    crashpoints.reached("wheel_stored")
    await packages.forget_parts(tx.connection, key)
    await packages.change(tx.connection, key, state=PackageState.CHECKING, sent_at=None)
    log.info("package_stored", tenant=package.tenant, package=package.digest[:12], bytes=package.size_bytes)
    report(tx, replace(package, state=PackageState.CHECKING), waits_for=await request_check(tx, package, families))


# -------------------------------------------------------------------------------------------------------------- checks


async def request_check(tx: Transaction, package: Package, families: Collection[str]) -> str:
    """Request the check of a locked package; returns why it must wait, or an empty string."""
    if OWN_FAMILY not in families:
        return NO_REPLICA
    if await packages.checks_sent(tx.connection, package.tenant) >= CHECKS_PER_TENANT:
        return f"waiting while {CHECKS_PER_TENANT} other packages of its tenant are checked"
    digest = package.digest
    message = CheckPackage(tenant=package.tenant, family=OWN_FAMILY, package=digest, wheel=package.wheel, weight=package.weight)
    tx.post([OutboxMessage(streams.check_package(OWN_FAMILY, package.tenant, digest), message, "")])
    await packages.mark_sent(tx.connection, (package.tenant, digest))
    return ""


async def request_waiting_checks(tx: Transaction, families: Collection[str], tenant: str | None = None) -> None:
    """Request checks that waited for a replica or for the tenant's other checks, and resend unanswered ones."""
    if OWN_FAMILY not in families:
        return
    for key in await packages.waiting(tx.connection, resend_s=RESEND_S, tenant=tenant):
        package = await packages.lock(tx.connection, key)
        if package is not None and package.state == PackageState.CHECKING:
            await request_check(tx, package, families)


async def settle(tx: Transaction, answer: PackageChecked) -> None:
    """Make a package usable, or refused; late answers are ignored."""
    key = answer.tenant, answer.package
    package = await packages.lock(tx.connection, key)
    if package is None or package.state != PackageState.CHECKING:
        return
    if objection := answer.objection or _wrong(answer):
        package = replace(package, state=PackageState.REFUSED, objection=shortened(objection))
        await packages.change(tx.connection, key, state=package.state, objection=package.objection)
    else:
        package = replace(package, state=PackageState.USABLE, name=answer.name, version=answer.version, environments=answer.environments)
        await packages.make_usable(tx.connection, key, answer)
    log.info("package_checked", tenant=package.tenant, package=package.digest[:12], state=package.state)
    report(tx, package)


def _wrong(answer: PackageChecked) -> str:
    """Why no task could use the package; empty if one could."""
    if not answer.name or not answer.environments:
        return "its check named no package, or no environment"
    if len(answer.environments) > MAX_ENVIRONMENTS:
        return f"it has {len(answer.environments)} environments, at most {MAX_ENVIRONMENTS} are taken"
    wrong = [one.name for one in answer.environments if not re.fullmatch(OWN_PATTERN, own_name(one.name)) or "@" in one.name]
    return f"no task can name its environment '{wrong[0][:100]}'" if wrong else ""


# ------------------------------------------------------------------------------------------------------------- answers


def report(tx: Transaction, package: Package, *, waits_for: str = "") -> None:
    """Emit the package's state to all requests that wait for it."""
    data: dict[str, JsonValue] = {"state": package.state}
    if package.state == PackageState.CHECKING:
        data |= {"reason": waits_for}
    elif package.state == PackageState.REFUSED:
        data |= {"reasons": [f"package: {package.objection}" if package.kind == PackageKind.PACKAGE else package.objection]}
    elif package.kind == PackageKind.FILE:
        data |= {"name": package.name}
    else:
        names: list[JsonValue] = [own_name(one.name) for one in package.environments]
        data |= {"name": package.name, "version": package.version, "environments": names}
    emit(tx, package, "package", data)


def emit(tx: Transaction, package: Package, event: str, data: dict[str, JsonValue]) -> None:
    for request in package.requests:
        tx.emit_event(package.tenant, "none", event, {"request": request, "digest": package.digest, **data})


# ------------------------------------------------------------------------------------------------------------ deletion


async def give_up(tx: Transaction, package: Package, requests: Sequence[str] = (), reason: str = "") -> None:
    """Make a locked package unavailable to tasks. `requests`: requests that its deletion answers. `reason`: for clients that wait for its
    upload."""
    if reason:
        emit(tx, package, "package", {"reasons": [reason]})
    await packages.change(tx.connection, (package.tenant, package.digest), state=PackageState.DELETING, requests=list(requests))


async def finish_deletion(tx: Transaction, key: Key, blobs: Blobs) -> None:
    """Delete the blob and rows of a package marked for deletion. Raises: Unavailable if the blob store is."""
    package = await packages.lock(tx.connection, key)
    if package is None or package.state != PackageState.DELETING:
        return
    await blobs.delete(package.wheel.name)
    crashpoints.reached("wheel_deleted")
    await packages.delete_package(tx.connection, key)
    log.info("package_deleted", tenant=package.tenant, package=package.digest[:12])
    emit(tx, package, "package-deleted", {"bytes": package.size_bytes})
