"""Files of tenants: client → scheduler, in parts as packages are; and what there is of them."""

import re

from pydantic import Field

from common.formats.wrong_values import described
from common.messages.asks import MAX_NUMBER
from common.messages.base import Message, Sentence, Value
from common.messages.tenancy.packages import UploadedPart

MAX_FILE_BYTES = 512 * 1024 * 1024
FILE_ID_PATTERN = r"file-[0-9a-f]{64}"
"""A file is its digest: the same bytes are the same file."""
FILE_ID = described(rf"^{FILE_ID_PATTERN}$", "the id of a file, file-… with 64 hexadecimal digits")
FILE_FAMILY = "file"
"""Family of the environment whose rows are a file's: tasks name it `file:<id>`."""


class UploadFile(UploadedPart, Message, kind="upload-file.1"):
    """Store one part of a file. The last part to arrive has its rows checked. Answered by the event `package`. Harmless when repeated."""

    size_bytes: int = Field(ge=1, le=MAX_FILE_BYTES)
    name: str = Field(min_length=1, max_length=255)
    """Name of the file, for people."""


class AskFiles(Message, kind="ask-files.1"):
    after: int = Field(default=0, ge=0, le=MAX_NUMBER)
    """Number of the last file that the client has."""
    file: str | None = Field(default=None, pattern=FILE_ID)
    """Of this one alone."""


class AskFileChunk(Message, kind="ask-file-chunk.1"):
    file: str = Field(pattern=FILE_ID)
    offset: int = Field(ge=0, le=MAX_NUMBER)
    """Bytes of the file before this part."""


class StoredFile(Value):
    """A file that a tenant has uploaded."""

    number: int
    """By which answers are ordered, and asked for."""
    tenant: str
    file: str
    """Its id: `file-` and its SHA-256."""
    name: str
    size_bytes: int
    kept_bytes: int
    """Bytes of the parts that have arrived."""
    state: str
    """`uploading`: parts are missing; `usable`; `refused`; `deleting`."""
    reason: Sentence
    """Why it is refused; else empty."""
    rows: int
    """0 until it is usable."""
    uploaded_s: float
    """Unix time of its first part."""
    live_tasks: int
    """Tasks that use it and have not ended."""

    @property
    def digest(self) -> str:
        return self.file.removeprefix("file-")


class FilesAnswer(Message, kind="files-answer.1"):
    files: list[StoredFile]
    """By number."""
    has_more: bool
    """Whether there are files after the last of these."""


def is_file(name: str) -> bool:
    """Whether a task that names this environment means rows of a file. `file` alone does, and names none: it is refused as such."""
    return name.partition(":")[0] == FILE_FAMILY


def file_id(digest: str) -> str:
    return f"file-{digest}"


def file_blob(tenant: str, digest: str) -> str:
    """Name of the blob with a tenant's file, which is stored as it is. `digest`: its SHA-256."""
    return f"file-{tenant}-{digest}.jsonl"


def files_in(text: str) -> set[str]:
    """Digests of the files that a text, such as a task file as JSON, names."""
    return {found.removeprefix("file-") for found in re.findall(FILE_ID_PATTERN, text)}
