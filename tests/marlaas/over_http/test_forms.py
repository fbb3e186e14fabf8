"""Uploads are sent a part at a time."""

import asyncio
import tempfile
import tracemalloc

from common.bus import NO_FILES
from marlaas.over_http.connection import Connection
from marlaas.over_http.tenancy.forms import form_with_file

SIZE = 96 * 1024 * 1024
MOST = 8 * 1024 * 1024


async def test_memory_of_an_upload_does_not_grow_with_its_size() -> None:
    received = 0

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        while received < length:
            received += len(await reader.read(65536))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, Connection.open(url, None, NO_FILES, patience_s=0) as connection:
        with tempfile.TemporaryFile() as file:
            file.truncate(SIZE)
            form = form_with_file(file, "rows.jsonl", SIZE, purpose="fine-tune")
            tracemalloc.start()
            try:
                await connection.request("POST", "/v1/files", body=form, answer_s=120)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
    assert received == form.size_bytes
    assert peak < MOST
