"""Answers about adapters: which there is, and its bytes. The blob's name is PostgreSQL's, never the client's."""

from common.errors import Reject
from common.messages import AdapterAnswer, AdapterRef, AskAdapter, AskChunk, ChunkAnswer
from common.messages.asks import CHUNK_BYTES
from scheduler_svc.ask.question import Question, Unknown
from scheduler_svc.store.asked.reports import Adapters, adapters

MAX_NAMED = 20
"""Maximum versions that a refusal names."""


async def answer_adapter(question: Question, request: AskAdapter) -> AdapterAnswer:
    """Raises: Unknown."""
    found = await _adapters(question, request.task, request.version)
    return AdapterAnswer(adapter=_stored(found, request.task, request.version))


async def answer_chunk(question: Question, request: AskChunk) -> ChunkAnswer:
    """Raises: Unknown; Reject when the blob has no such part."""
    found = await _adapters(question, request.task, request.version)
    adapter = _stored(found, request.task, request.version)
    if request.offset >= adapter.blob.size_bytes:
        raise Reject(f"offset: the adapter has {adapter.blob.size_bytes} bytes, none at {request.offset}")
    try:
        return ChunkAnswer(data=await question.sources.chunks.read(adapter.blob, request.offset, CHUNK_BYTES))
    except Reject:
        raise _gone(found, request.task, adapter.version) from None


async def _adapters(question: Question, task: str, version: int | None) -> Adapters:
    async with question.reading() as connection:
        found = await adapters(connection, question.tenant, task, version)
    if found is None:
        raise question.unknown(task)
    return found


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
