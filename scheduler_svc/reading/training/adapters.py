"""Answers about adapters: which there is, and its bytes. The blob's name is PostgreSQL's, never the client's.

Each download leaves a row in the audit: that of `adapter`, or of the first part, where a client asks for parts only.
"""

from dataclasses import replace

from common.errors import Reject
from common.messages import AdapterAnswer, AdapterRef, AskAdapter, AskChunk, ChunkAnswer
from common.messages.asks import CHUNK_BYTES
from scheduler_svc.base.audit import accepted
from scheduler_svc.reading.queries.events import tenant_of
from scheduler_svc.reading.queries.reports import Adapters, adapters
from scheduler_svc.tenancy.question import Question, Unknown

MAX_NAMED = 20
"""Maximum versions that a refusal names."""


async def answer_adapter(question: Question, request: AskAdapter) -> AdapterAnswer:
    """Raises: Unknown."""
    _, adapter = await _found(question, request.task, request.version)
    await _record(question, request.task, adapter)
    return AdapterAnswer(adapter=adapter)


async def answer_chunk(question: Question, request: AskChunk) -> ChunkAnswer:
    """Raises: Unknown; Reject when the blob has no such part."""
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
    """Raises: Unknown."""
    async with question.reading() as connection:
        found = await adapters(connection, question.tenant, task, version)
    if found is None:
        raise question.unknown(task)
    return found, _stored(found, task, version)


async def _record(question: Question, task: str, adapter: AdapterRef) -> None:
    """Write the download into the audit, before any of it is sent."""
    async with question.recording() as tx:
        tenant = question.tenant or await tenant_of(tx.connection, task) or question.by.tenant
        tx.record(accepted(replace(question.by, tenant=tenant), adapter.name))
    question.sources.downloads.record((question.by.key, adapter.name))


def _stored(found: Adapters, task: str, version: int | None) -> AdapterRef:
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
