"""Rules that compare the blob store with PostgreSQL."""

import tempfile
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from common.blobs import BLOB_NAME, Blobs, StoredBlob
from common.bus import Bus
from common.errors import Reject
from common.messages import PACKAGE_BLOB, BlobRef
from scheduler_svc.base.tables import deleted_tasks, tasks
from scheduler_svc.doctor.violation import Violation
from scheduler_svc.upkeep.deletion.storage import NeededBlobs, needed_blobs
from scheduler_svc.uploads import package_queries as packages

PACKAGES = "the package of every row that has one is stored whole, and every stored package has a row"
MISSING = "every blob that a task keeps of its trained steps is stored whole"
ORPHANS = "every blob is named by a step of its task that keeps it"
DAMAGED = "every blob has the digest that its step names"
RULES = (MISSING, ORPHANS, PACKAGES, DAMAGED)


async def read_needed(connection: AsyncConnection) -> dict[str, NeededBlobs]:
    """Needed blobs by task, including deleted tasks."""
    known = (await connection.execute(select(tasks.c.id).union_all(select(deleted_tasks.c.id)))).scalars()
    needed = {task: await needed_blobs(connection, task) for task in known}
    return {task: blobs for task, blobs in needed.items() if blobs is not None}


async def read_wheels(connection: AsyncConnection) -> dict[str, bool]:
    """Whether each package's blob must be stored, by blob name."""
    return await packages.wheels(connection)


async def examine_blobs(
    bus: Bus, needed: dict[str, NeededBlobs], wheels: dict[str, bool], *, grace_s: float, deep: bool
) -> list[Violation]:
    """Violations of this module's rules. `grace_s`: maximum age of an unneeded blob. `deep`: compare digests of all required blobs too.

    Raises: Retry if NATS is unavailable.
    """
    blobs = Blobs(bus)
    required = {name: ref for task in needed.values() for name, ref in task.kept.items()}
    present = {blob.name: blob for blob in await blobs.listed()}
    missing = [name for name in required if name not in present or not present[name].is_whole]
    found = [Violation(MISSING, f"blob={name}: {'incomplete' if name in present else 'gone'}") for name in missing]
    found += [
        Violation(ORPHANS, f"blob={blob.name} age_s={blob.age_s:.0f}")
        for blob in present.values()
        if blob.age_s > grace_s and not PACKAGE_BLOB.fullmatch(blob.name) and not _is_needed(blob, needed)
    ]
    found += _packages(present, wheels, grace_s)
    if deep:
        found += [violation for name, ref in required.items() if name not in missing and (violation := await _damage(blobs, ref))]
    return found


def _packages(present: dict[str, StoredBlob], wheels: dict[str, bool], grace_s: float) -> list[Violation]:
    gone = [name for name, is_required in wheels.items() if is_required and not (name in present and present[name].is_whole)]
    strange = [blob for name, blob in present.items() if PACKAGE_BLOB.fullmatch(name) and name not in wheels and blob.age_s > grace_s]
    found = [Violation(PACKAGES, f"blob={name}: {'incomplete' if name in present else 'gone'}") for name in gone]
    return found + [Violation(PACKAGES, f"blob={blob.name} age_s={blob.age_s:.0f}: no package") for blob in strange]


def _is_needed(blob: StoredBlob, needed: dict[str, NeededBlobs]) -> bool:
    name = BLOB_NAME.fullmatch(blob.name)
    task = needed.get(name["task"]) if name else None
    return name is not None and task is not None and task.include(blob.name, int(name["version"]))


async def _damage(blobs: Blobs, ref: BlobRef) -> Violation | None:
    with tempfile.TemporaryDirectory(prefix="marlaas-doctor-") as folder:
        try:
            await blobs.fetch_folder(ref, Path(folder) / "blob")
        except Reject as error:
            return Violation(DAMAGED, str(error))
    return None
