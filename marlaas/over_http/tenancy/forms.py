"""A form with a file, for `multipart/form-data`: sent a part at a time, so that it may be larger than memory."""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from typing import IO

from marlaas.over_http.connection import Upload

PART_BYTES = 256 * 1024


def form_with_file(file: IO[bytes], name: str, size_bytes: int, **fields: str) -> Upload:
    """`file` is read from its beginning for each attempt; `name`: its name in the form, of which only what can be printed is sent."""
    boundary = secrets.token_hex(16)
    begin, disposition = f"--{boundary}\r\n", "Content-Disposition: form-data; name="
    others = "".join(f'{begin}{disposition}"{field}"\r\n\r\n{value}\r\n' for field, value in fields.items())
    named = f'{begin}{disposition}"file"; filename="{_quoted(name)}"\r\nContent-Type: application/jsonl\r\n\r\n'
    head = f"{others}{named}".encode()
    tail = f"\r\n--{boundary}--\r\n".encode()

    async def parts() -> AsyncGenerator[bytes]:
        yield head
        for offset in range(0, size_bytes, PART_BYTES):
            yield await asyncio.to_thread(_read, file, offset, min(PART_BYTES, size_bytes - offset))
        yield tail

    return Upload(f"multipart/form-data; boundary={boundary}", len(head) + size_bytes + len(tail), parts)


def _read(file: IO[bytes], offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def _quoted(name: str) -> str:
    shown = "".join(char for char in name if char.isprintable())
    return shown.replace("\\", "\\\\").replace('"', '\\"')
