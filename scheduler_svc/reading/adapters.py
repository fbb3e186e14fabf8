"""Answers about adapters: metadata and bytes. The blob's name comes from PostgreSQL, never from the client.

Each download adds one audit row: for `adapter`, or for the first chunk if a client requests only chunks.
"""

from dataclasses import dataclass, replace

from sqlalchemy import Text, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from common.errors import Reject
from common.messages import AdapterAnswer, AdapterRef, AskAdapter, AskChunk, ChunkAnswer, from_json
from common.messages.asks import CHUNK_BYTES
from scheduler_svc.base.audit import accepted
from scheduler_svc.base.sql import Statement, given, in_state
from scheduler_svc.base.states import StepState
from scheduler_svc.base.tables import steps, stored_blobs, tasks
from scheduler_svc.reading.events import tenant_of
from scheduler_svc.tenancy.question import Question, Unknown

MAX_NAMED = 20
"""Maximum versions listed in a refusal."""


@dataclass(frozen=True)
class Adapters:
    """A task's requested and stored adapters."""

    version: int
    """Current version of the task."""
    adapter: AdapterRef | None
    """Adapter of the requested version; None if no step produced that version."""
    is_stored: bool
    stored: list[int]
    """Versions whose adapters are stored, ascending."""


async def answer_adapter(question: Question, request: AskAdapter) -> AdapterAnswer:
    """Reference of the requested version's adapter; records the download. Raises: Unknown."""
    _, adapter = await _found(question, request.task, request.version)
    await _record(question, request.task, adapter)
    return AdapterAnswer(adapter=adapter)


async def answer_chunk(question: Question, request: AskChunk) -> ChunkAnswer:
    """Part of the adapter's blob from the requested offset. Raises: Unknown; Reject if the offset is past the end."""
    found, adapter = await _found(question, request.task, request.version)
    if not question.sources.downloads.are_recorded((question.by.key, adapter.name)):
        await _record(question, request.task, adapter)
    if request.offset >= adapter.blob.size_bytes:
        raise Reject(f"offset: the adapter has {adapter.blob.size_bytes} bytes, none at {request.offset}")
    try:
        return ChunkAnswer(data=await question.sources.chunks.read(adapter.blob, request.offset, CHUNK_BYTES))
    except Reject:
        raise _gone(found, request.task, adapter.version) from None


async def _found(question: Question, task: str, version: int | None) -> tuple[Adapters, AdapterRef]:
    """Adapters of the task, and the requested one. Raises: Unknown."""
    async with question.reading() as connection:
        found = await adapters(connection, question.tenant, task, version)
    if found is None:
        raise question.unknown(task)
    return found, _named(found, task, version)


async def _record(question: Question, task: str, adapter: AdapterRef) -> None:
    """Write the download into the audit before any byte is sent."""
    async with question.recording() as tx:
        tenant = question.tenant or await tenant_of(tx.connection, task) or question.by.tenant
        tx.record(accepted(replace(question.by, tenant=tenant), adapter.name))
    question.sources.downloads.record((question.by.key, adapter.name))


def _named(found: Adapters, task: str, version: int | None) -> AdapterRef:
    if found.version == 0:
        raise Unknown(f"task {task} has no adapter yet: no step is trained")
    if found.adapter is None:
        raise Unknown(f"task {task} has no version {version}; known are: 1 to {found.version}")
    if not found.is_stored:
        raise _gone(found, task, found.adapter.version)
    return found.adapter


def _gone(found: Adapters, task: str, version: int) -> Unknown:
    there = ", ".join(str(one) for one in found.stored[-MAX_NAMED:] if one != version) or "none"
    return Unknown(
        f"version {version} of task {task} is no longer stored; versions that are: {there}. The section keep of its file decides"
    )


_wanted = func.coalesce(given("wanted_version"), tasks.c.version)

_made = (
    select(steps.c.adapter)
    .where(steps.c.task == tasks.c.id, steps.c.version == _wanted - 1, in_state(steps.c.state, StepState.TRAINED))
    .scalar_subquery()
    .label("made")
)

_stored = (
    select(func.array_agg(stored_blobs.c.version.distinct()))
    .where(stored_blobs.c.task == tasks.c.id, stored_blobs.c.kind == "adapter")
    .scalar_subquery()
    .label("stored")
)

_is_tenants = or_(given("of_tenant", Text).is_(None), tasks.c.tenant == given("of_tenant", Text))

_ADAPTERS = Statement(select(tasks.c.version, _made, _stored).where(tasks.c.id == given("of_task"), _is_tenants))


async def adapters(connection: AsyncConnection, tenant: str | None, task: str, version: int | None) -> Adapters | None:
    """Adapters of the task; None if the tenant has no such task. `version`: None for the latest."""
    found = await _ADAPTERS.run(connection, {"of_tenant": tenant, "of_task": task, "wanted_version": version})
    if not found:
        return None
    adapter = from_json(AdapterRef, found[0].made) if found[0].made else None
    stored: list[int] = sorted(found[0].stored or [])
    return Adapters(found[0].version, adapter, adapter is not None and adapter.version in stored, stored)
