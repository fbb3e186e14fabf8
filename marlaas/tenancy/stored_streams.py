"""All streams of a deployment saved to a folder, and restored from it: for backups, and for moving a store into a cluster or an account.

<stream>.snapshot   JetStream's snapshot
<stream>.json       its settings, state, size and digest; written last, so that a stream without it counts as not saved
"""

import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import ValidationError

from common.access.claims import user_token
from common.access.credentials import write_credentials
from common.access.folder import SigningKeys
from common.access.keys import Kind, Seed
from common.access.rows import Permissions
from common.bus import NO_FILES, Bus, Snapshot, TlsFiles
from common.client_api.errors import ClientError
from common.formats.wrong_values import first_complaint

NAME = "stored-streams"
INBOX = f"_INBOX.{NAME}"
PERMITTED = Permissions(
    (
        *("$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.SNAPSHOT.*", "$JS.API.STREAM.RESTORE.*"),
        *("$JS.SNAPSHOT.ACK.>", "$JS.SNAPSHOT.RESTORE.>"),
    ),
    (f"{INBOX}.>",),
    INBOX,
)
VALID_S = 24 * 3600
"""Lifetime in seconds of the key of one command."""


@asynccontextmanager
async def connected(url: str, signing: SigningKeys | None, *, insecure: bool = False, tls: TlsFiles = NO_FILES) -> AsyncGenerator[Bus]:
    """A connection that may save and restore. With keys, it uses a temporary key, which no service has and which ends with the block.

    Raises: Fatal if NATS refuses it.
    """
    if signing is None:
        async with await Bus.connect(url, NAME, tls=tls) as bus:
            yield bus
        return
    creds, seed, now_s = signing.folder / f"{NAME}-{secrets.token_hex(4)}.creds", Seed.new(Kind.USER), int(time.time())
    write_credentials(creds, user_token(signing.services, seed.public, NAME, PERMITTED, now_s, end_s=now_s + VALID_S), seed)
    try:
        async with await Bus.connect(url, NAME, creds=creds, insecure=insecure, tls=tls) as bus:
            yield bus
    finally:
        creds.unlink()


async def save(bus: Bus, folder: Path) -> AsyncIterator[tuple[str, Snapshot]]:
    """Save every stream; yields each. Raises: ClientError if the folder is not empty; Unavailable; Reject; OSError."""
    _make_empty(folder)
    for stream in await bus.snapshots.names():
        snapshot = await bus.snapshots.save(stream, folder / f"{stream}.snapshot")
        (folder / f"{stream}.json").write_text(snapshot.model_dump_json())
        yield stream, snapshot


async def restore(bus: Bus, folder: Path, *, replicas: int | None) -> AsyncIterator[tuple[str, Snapshot, bool]]:
    """Restore every stream of the folder; yields each, and whether it was absent. An interrupted restore may be repeated.

    Raises: ClientError if the folder has none, or an incomplete one; Unavailable; Reject.
    """
    for stream in _saved(folder):
        snapshot = _read(folder / f"{stream}.json")
        yield stream, snapshot, await bus.snapshots.restore(stream, folder / f"{stream}.snapshot", snapshot, replicas=replicas)


def _make_empty(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise ClientError(f"{folder} is not empty; name another folder")
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)  # prompts, replies and adapters of all tenants


def _saved(folder: Path) -> list[str]:
    found = sorted(path.stem for path in folder.glob("*.json"))
    if not found:
        raise ClientError(f"{folder} has no saved streams; `marlaas streams save FOLDER` makes them")
    if partial := sorted({path.stem for path in folder.glob("*.snapshot")} - set(found)):
        raise ClientError(f"{folder} is not complete: saving ended at {partial[0]}; save the streams to another folder")
    return found


def _read(file: Path) -> Snapshot:
    try:
        return Snapshot.model_validate_json(file.read_text())
    except ValidationError as error:
        raise ClientError(f"{file} is damaged: {first_complaint(error, quoting=False)}") from None
