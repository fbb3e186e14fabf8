"""The environment `file:<id>`: a row's `messages` are the prompt, one reply is graded. A store keeps the files that were used last."""

import asyncio
import hashlib
import json
import os
import re
import uuid
import weakref
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

import structlog
from pydantic import JsonValue

from common.blobs import Blobs
from common.caches import SingleFlightCache
from common.errors import Reject, Unavailable
from common.formats.jsonl import MAX_ROW_BYTES, Row, offsets, parse_row
from common.graders import WrongGrader, read_grader
from common.messages import FILE_FAMILY, FILE_ID_PATTERN, MAX_FILE_BYTES, file_blob
from env_svc.contract import ChatMessage, Environment, Finish, Opening, Reply, Turn, WrongOptions
from env_svc.files.grading import ERRORS, Grading
from env_svc.options import options_of, validated_options
from env_svc.process_folder import ProcessFolder

Part = Literal["all", "train", "held_out"]
ROLES: Mapping[str, str] = {"developer": "system"}
"""Role in a file → its name in chat templates, for those that differ."""


class RowFile:
    """Rows of a checked file. The file is unlinked once open, so that nothing remains when the process ends."""

    def __init__(self, path: Path) -> None:
        """Raises: OSError."""
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        with path.open("rb") as lines:
            self._places = array("Q", offsets(iter(lines)))
        path.unlink()

    def __len__(self) -> int:
        return len(self._places)

    def row(self, number: int) -> Row:
        """Parse a row. Raises: ValueError if the file differs from the checked one."""
        line = os.pread(self._file, MAX_ROW_BYTES + 1, self._places[number]).partition(b"\n")[0]
        row = parse_row(line)
        if row is None:
            raise ValueError(f"row {number} is empty")
        return row


class FileRows(Environment[int]):
    """Rows of a file as an environment. The state is the row number."""

    def __init__(
        self, rows: RowFile, *, grader: dict[str, JsonValue], file: str | None = None, part: Part = "all", held_out: float = 0.0
    ) -> None:
        """`file`: replaces the file in the environment's name, as for an evaluation. `part`: rows to use. `held_out`: fraction
        of the rows, at the end of the file, that training leaves out."""
        del file
        if not 0 <= held_out < 1:
            raise WrongOptions(f"environment 'file': held_out is {held_out:g}, expected a share from 0 to below 1")
        try:
            self._grading = Grading(read_grader(cast("JsonValue", grader)))
            self._grading.check(rows.row(0))
        except WrongGrader as error:
            raise WrongOptions(f"environment 'file': grader.{error}") from None
        kept = len(rows) - round(len(rows) * held_out)
        self._first = kept if part == "held_out" else 0
        self._count = (kept if part == "train" else len(rows)) - self._first
        self._rows = rows
        if not self._count:
            raise WrongOptions(f"environment 'file': no row of {len(rows)} is in the part '{part}' with held_out = {held_out:g}")

    async def open(self, index: int, seed: int) -> Opening[int]:
        epoch, position = divmod(index, self._count)
        number = self._first + permuted(position, self._count, f"{seed}:{epoch}")
        messages = [_message(one) for one in self._rows.row(number)["messages"]]
        return Opening(messages, number)

    async def step(self, state: int, reply: Reply) -> Turn[int]:
        grade = await self._grading.grade(self._rows.row(state), reply.text)
        return Finish(grade.value, {**grade.parts, ERRORS: float(grade.errors)})


def _message(given: Mapping[str, str]) -> ChatMessage:
    role = ROLES.get(given["role"], given["role"])
    return ChatMessage.model_validate({"role": role, "content": given["content"]})


def digest_of(name: str, options: Mapping[str, JsonValue]) -> str:
    """SHA-256 of the file that a task means: its option `file`, or the one in its environment's name. Raises: WrongOptions."""
    file = options.get("file")
    said = file if file is not None else name.partition(":")[2]
    if not isinstance(said, str) or not re.fullmatch(FILE_ID_PATTERN, said):
        raise WrongOptions(f"environment '{FILE_FAMILY}': '{said!s:.100}' names no file; expected file-<SHA-256>")
    return said.removeprefix("file-")


def file_rows(name: str, rows: RowFile, options: Mapping[str, JsonValue]) -> FileRows:
    """Raises: WrongOptions."""
    known = options_of(FileRows) or []
    values = validated_options(f"environment '{name[:20]}…'", known[1:], options)
    return FileRows(rows, **values)


ROUNDS = 4


def permuted(position: int, count: int, key: str) -> int:
    """Position of `position` in a permutation of 0 to count - 1 selected by `key`.

    A Feistel network permutes 0 to s - 1, where s ≥ `count` is the smallest square of a power of two. Results of `count` or more are
    permuted again.
    """
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    while True:
        position = _mixed(position, half, key)
        if position < count:
            return position


def _mixed(value: int, half: int, key: str) -> int:
    left, right, mask = value >> half, value & ((1 << half) - 1), (1 << half) - 1
    for number in range(ROUNDS):
        digest = hashlib.blake2b(f"{key}:{number}:{right}".encode(), digest_size=8).digest()
        left, right = right, left ^ (int.from_bytes(digest, "big") & mask)
    return left << half | right


MAX_HELD = 16
"""Maximum cached files, each up to 512 MiB."""
MAX_BUILT = 16
"""Maximum cached environments per file, one for each set of options."""

log = structlog.get_logger()


@dataclass(frozen=True)
class _Held:
    """A cached file and its environments, which are evicted together."""

    rows: RowFile
    built: SingleFlightCache[str, FileRows] = field(default_factory=lambda: SingleFlightCache[str, FileRows](MAX_BUILT))


class FileStore:
    def __init__(self, blobs: Blobs, shared: Path) -> None:
        """`shared`: folder of all replicas that use the same data folder on this machine."""
        self._blobs = blobs
        self._folder = ProcessFolder(shared)
        self._held: SingleFlightCache[tuple[str, str], _Held] = SingleFlightCache(MAX_HELD)

    def open(self) -> None:
        """Remove partial downloads of killed processes. Without the folder, no file can be fetched."""
        try:
            self._folder.open()
        except OSError as error:
            log.warning("no_folder_for_files", folder=str(self._folder.path.parent), reason=str(error))

    def close(self) -> None:
        self._folder.close()

    async def environment(self, name: str, tenant: str, options: Mapping[str, JsonValue]) -> FileRows:
        """Raises: WrongOptions, also if the tenant has no such file; Unavailable if it cannot be fetched now."""
        digest = digest_of(name, options)
        held = await self._held.get((tenant, digest), lambda: self._fetched(tenant, digest))
        key = json.dumps([name, dict(options)], sort_keys=True)
        return await held.built.get(key, lambda: asyncio.to_thread(file_rows, name, held.rows, options))

    async def _fetched(self, tenant: str, digest: str) -> _Held:
        path = self._folder.path / f"{digest[:16]}.{uuid.uuid4().hex}"
        try:
            await self._blobs.fetch_file(file_blob(tenant, digest), digest, path, most_bytes=MAX_FILE_BYTES)
            return _Held(await asyncio.to_thread(RowFile, path))
        except Reject as error:
            raise WrongOptions(f"file-{digest} cannot be read: {error}") from None
        except OSError as error:
            raise Unavailable(f"no file can be kept in {self._folder.path}: {error.strerror}") from None
