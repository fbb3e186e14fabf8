"""Answers about a tenant's files: which there are, and their bytes."""

from common.errors import Reject
from common.messages import AskFileChunk, AskFiles, ChunkAnswer, FilesAnswer
from common.messages.asks import CHUNK_BYTES
from scheduler_svc.tenancy.question import Question, Unknown, page
from scheduler_svc.uploads.file_queries import blob_of, files_after

MOST = 200
"""Maximum files of a page."""


async def answer_files(question: Question, request: AskFiles) -> FilesAnswer:
    async with question.reading() as connection:
        found = await files_after(connection, question.tenant, after=request.after, file=request.file, most=MOST)
    kept = page(found)
    return FilesAnswer(files=kept, has_more=len(kept) < len(found) or len(found) == MOST)


async def answer_file_chunk(question: Question, request: AskFileChunk) -> ChunkAnswer:
    """Raises: Unknown; Reject when the file has no such part."""
    async with question.reading() as connection:
        blob = await blob_of(connection, question.tenant, request.file)
    if blob is None:
        raise Unknown(f"no file '{request.file}'" + (f" of tenant '{question.tenant}'" if question.tenant else ""))
    if request.offset >= blob.size_bytes:
        raise Reject(f"offset: the file has {blob.size_bytes} bytes, none at {request.offset}")
    try:
        return ChunkAnswer(data=await question.sources.chunks.read(blob, request.offset, CHUNK_BYTES))
    except Reject:
        raise Unknown(f"file '{request.file}' is no longer stored") from None
