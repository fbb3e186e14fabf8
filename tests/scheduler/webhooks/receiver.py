"""A receiver of webhooks: a real HTTP server on this machine, which answers as a test says."""

import asyncio
import base64
import hashlib
import hmac
import json
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from marlaas.stack import servers

Answer = Callable[[asyncio.StreamWriter], Any]
OK = b"HTTP/1.1 204 No Content\r\n\r\n"


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def content(self) -> Any:
        return json.loads(self.body)

    def is_signed_by(self, secret: str) -> bool:
        signed = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + self.body
        digest = hmac.new(base64.b64decode(secret.removeprefix("whsec_")), signed, hashlib.sha256).digest()
        return self.headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"


@dataclass
class Receiver:
    port: int
    answers: list[bytes | None] = field(default_factory=list[bytes | None])
    """Of the first requests; None: it never answers. Then OK."""
    received: list[Received] = field(default_factory=list[Received])
    scheme: str = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/hook?token=x"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers["content-length"]))
            answer = self.answers[len(self.received)] if len(self.received) < len(self.answers) else OK
            self.received.append(Received(head[0].split(" ")[1], headers, body))
            if answer is None:
                await reader.read()
            else:
                writer.write(answer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiver(*answers: bytes | None, tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncGenerator[Receiver]:
    found = Receiver(port or servers.free_port(), list(answers), scheme="https" if tls else "http")
    server = await asyncio.start_server(found.handle, "127.0.0.1", found.port, ssl=tls)
    try:
        yield found
    finally:
        server.close()
