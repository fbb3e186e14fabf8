"""A proxy that cuts connections: it passes bytes both ways, and ends a connection when it has seen what it is told to cut at."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

Cut = Literal["request", "answer"]


@dataclass
class Cutting:
    """`cut_request`: whether a request's connection is cut, once it is passed on, or before its answer; `most`: bytes of answers after
    which a connection is cut."""

    address: str = ""
    cut_request: Callable[[bytes], Cut | None] = lambda _: None
    most: int | None = None
    cuts: int = 0
    sent: list[bytes] = field(default_factory=list[bytes])
    """First bytes of each connection's requests."""


@asynccontextmanager
async def cutting(url: str, **rules: object) -> AsyncGenerator[Cutting]:
    proxy, parts = Cutting(**rules), urlsplit(url)  # type: ignore[arg-type]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, onward = await asyncio.open_connection(parts.hostname, parts.port)
        is_withheld = False

        async def upstream() -> None:
            nonlocal is_withheld
            while data := await reader.read(65536):
                proxy.sent.append(data)
                cut = proxy.cut_request(data)
                is_withheld = is_withheld or cut == "answer"
                onward.write(data)
                await onward.drain()
                if cut == "request":
                    proxy.cuts += 1
                    return

        async def downstream() -> None:
            passed = 0
            while data := await behind.read(65536):
                if is_withheld:  # the request has had its effect: here is its answer
                    proxy.cuts += 1
                    return
                if proxy.most is not None and passed + len(data) > proxy.most:
                    writer.write(data[: proxy.most - passed])
                    await writer.drain()
                    proxy.cuts += 1
                    return
                passed += len(data)
                writer.write(data)
                await writer.drain()

        both = [asyncio.create_task(upstream()), asyncio.create_task(downstream())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            onward.close()
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
