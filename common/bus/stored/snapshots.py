"""Whole streams as files: JetStream snapshots, which a cluster, a single server and any account can restore.

A snapshot contains the stream's messages, its settings, and its consumers with their acknowledgements. Buckets of values and of blobs
are streams as well. Protocol: NATS ADR-50 and `server/jetstream_api.go` (STREAM.SNAPSHOT, STREAM.RESTORE).
"""

import asyncio
import hashlib
import json
import time
from pathlib import Path
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from pydantic import BaseModel, JsonValue

from common.bus.transport.connection import Connection, unavailable_as
from common.errors import Reject
from common.resilience.event_loop import cancellation_kept

NAMES, SNAPSHOT, RESTORE = "$JS.API.STREAM.NAMES", "$JS.API.STREAM.SNAPSHOT", "$JS.API.STREAM.RESTORE"
CHUNK_BYTES = 256 * 1024
SILENCE_S = 30.0
"""Maximum seconds between two parts of a snapshot."""
UNKNOWN_S = 0.1
"""Seconds before a part of a snapshot is resent, if no server of the cluster was subscribed to its subject."""
RESTORED_S = 600.0
"""Maximum seconds for NATS to unpack a restored stream."""
NO_SUCH_STREAM = 10059
COMPLETE = "204"
"""Status of the last message of a complete snapshot."""


class Snapshot(BaseModel):
    """Metadata written beside a snapshot, as JSON."""

    config: dict[str, JsonValue]
    """The stream's settings, in JetStream's format."""
    state: dict[str, JsonValue]
    bytes: int
    sha256: str

    @property
    def messages(self) -> JsonValue:
        return self.state.get("messages")

    @property
    def content(self) -> tuple[JsonValue, JsonValue]:
        """Message count and last sequence. Two snapshots have equal ones if the stream did not change between them."""
        return self.state.get("messages"), self.state.get("last_seq")


class Snapshots:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def names(self) -> list[str]:
        """Names of the account's streams. Raises: Unavailable; Forbidden if the key does not permit it."""
        names: list[str] = []
        while True:
            page = await self._api(NAMES, {"offset": len(names)}, "list the streams")
            names += page.get("streams") or []
            if not page.get("streams") or len(names) >= page["total"]:
                return sorted(names)

    async def save(self, stream: str, file: Path) -> Snapshot:
        """Write the stream to `file`; other clients may use the stream meanwhile. Raises: Unavailable; Reject; OSError."""
        client, digest, size = self._connection.client, hashlib.sha256(), 0
        inbox = client.new_inbox()
        parts = await client.subscribe(inbox)
        try:
            request = {"deliver_subject": inbox, "chunk_size": CHUNK_BYTES}
            about = await self._api(f"{SNAPSHOT}.{stream}", request, f"save stream {stream}")
            with file.open("wb") as out, unavailable_as(f"save stream {stream}"):
                while True:
                    with cancellation_kept():
                        part = await parts.next_msg(timeout=SILENCE_S)
                    if not part.data:
                        break
                    await asyncio.to_thread(out.write, part.data)
                    digest.update(part.data)
                    size += len(part.data)
                    if part.reply:
                        await part.respond(b"")  # NATS sends a few megabytes ahead of these responses
        finally:
            await parts.unsubscribe()
        if (ended := (part.headers or {}).get("Status", COMPLETE)) != COMPLETE:
            raise Reject(f"stream {stream} could not be saved: NATS ended it with status {ended}; save it once more")
        return Snapshot(config=about["config"], state=about["state"], bytes=size, sha256=digest.hexdigest())

    async def restore(self, stream: str, file: Path, snapshot: Snapshot, *, replicas: int | None = None) -> bool:
        """Create the stream from `file`; False if it already exists with the same content.

        `replicas`: copies in a cluster; None: as in the snapshot. Raises: Unavailable; Reject if the file is damaged, the stream exists
        with other content, or NATS refuses the snapshot.
        """
        if (there := await self._state(stream)) is not None:
            if Snapshot(config={}, state=there, bytes=0, sha256="").content == snapshot.content:
                return False
            raise Reject(f"stream {stream} is there already, with {there.get('messages')} messages: restore into a store that is empty")
        if not await asyncio.to_thread(_is_whole, file, snapshot):
            raise Reject(f"{file} is damaged: its content is not the saved one; restore another copy")
        config = snapshot.config | ({} if replicas is None else {"num_replicas": replicas})
        begun = await self._api(f"{RESTORE}.{stream}", {"config": config, "state": snapshot.state}, f"restore stream {stream}")
        with file.open("rb") as source:
            while part := await asyncio.to_thread(source.read, CHUNK_BYTES):
                with unavailable_as(f"restore stream {stream}"):
                    answer = await send_part(self._connection.client, begun["deliver_subject"], part)
                if answer.data:
                    raise Reject(f"stream {stream} could not be restored: {answer.data.decode(errors='replace')[:200]}")
        await self._api(begun["deliver_subject"], None, f"restore stream {stream}", timeout_s=RESTORED_S)
        return True

    async def _state(self, stream: str) -> dict[str, JsonValue] | None:
        found = await self._api(f"$JS.API.STREAM.INFO.{stream}", None, f"look at stream {stream}", absent=NO_SUCH_STREAM)
        return found.get("state")

    async def _api(
        self, subject: str, request: dict[str, Any] | None, action: str, *, timeout_s: float = SILENCE_S, absent: int | None = None
    ) -> dict[str, Any]:
        """JetStream's answer to a request; empty if it is the error with the code `absent`. `Any`: the answer is JSON."""
        with unavailable_as(action):
            body = b"" if request is None else json.dumps(request).encode()
            asking = self._connection.client.request(subject, body, timeout=timeout_s)
            answer = json.loads((await self._connection.unless_refused(subject, asking)).data)
        if error := answer.get("error"):
            if absent is not None and error.get("err_code") == absent:
                return {}
            raise Reject(f"NATS refuses to {action}: {error.get('description', error)}")
        return answer


def _is_whole(file: Path, snapshot: Snapshot) -> bool:
    with file.open("rb") as source:
        return file.stat().st_size == snapshot.bytes and hashlib.file_digest(source, "sha256").hexdigest() == snapshot.sha256


async def send_part(client: Client, subject: str, part: bytes) -> Msg:
    """Send a part of a snapshot; returns NATS's answer. Retries until a server takes the part: in a cluster, the other servers may not yet
    know the subscription of the server that restores.
    """
    deadline = time.monotonic() + SILENCE_S
    while True:
        try:
            return await client.request(subject, part, timeout=SILENCE_S)
        except NoRespondersError:
            if time.monotonic() >= deadline:
                raise
            await asyncio.sleep(UNKNOWN_S)
