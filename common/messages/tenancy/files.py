"""Packages and files of tenants: from client to scheduler, in parts; packages also from scheduler to environment service, to be checked."""

import re
from typing import Self

from pydantic import Field, model_validator

from common.fairness.fair_queue import Claimant
from common.formats.wrong_values import described
from common.messages.artifacts import SHA256_PATTERN, BlobRef
from common.messages.asks import MAX_NUMBER
from common.messages.base import Message, Sentence, Value
from common.messages.jobs import TenantRequest

MAX_PACKAGE_BYTES = 8 * 1024 * 1024
PART_BYTES = 512 * 1024
"""Bytes of each part but the last, below the default limit of a tenant's messages."""
PACKAGE_BLOB = re.compile(r"(package|file)-(?P<tenant>[a-z0-9-]+)-(?P<digest>[0-9a-f]{64})\.(whl|jsonl)")
"""Name of the blob with a tenant's wheel, or with one of its files; both are stored unpacked."""
DIGEST_CHARS = 12
"""Digits of a digest that identify a package to people; also the minimum that a request may give."""
DIGEST_PATTERN = described(rf"^[0-9a-f]{{{DIGEST_CHARS},64}}$", f"a digest, {DIGEST_CHARS} to 64 hexadecimal digits")
OWN_FAMILY = "own"
"""Family of the environments uploaded by tenants: tasks name them `own:<environment>[@<digest>]`; without a digest, the latest."""


class UploadedPart(TenantRequest):
    """One part of a tenant's upload; `request` is the same in every part."""

    digest: str = Field(pattern=SHA256_PATTERN)
    """SHA-256 of the complete file."""
    size_bytes: int = Field(ge=1)
    offset: int = Field(ge=0, multiple_of=PART_BYTES)
    data: bytes = Field(min_length=1, max_length=PART_BYTES)

    @model_validator(mode="after")
    def _is_whole_part(self) -> Self:
        if len(self.data) != min(PART_BYTES, self.size_bytes - self.offset):
            raise ValueError(f"the part at {self.offset} has {len(self.data)} bytes, which is not its share of {self.size_bytes}")
        return self


class UploadPackage(UploadedPart, Message, kind="upload-package.1"):
    """Store one part of a wheel. The last part to arrive starts the check. Answered by the event `package`. Idempotent."""

    size_bytes: int = Field(ge=1, le=MAX_PACKAGE_BYTES)


class DeletePackage(TenantRequest, Message, kind="delete-package.1"):
    """Delete a package that no live task uses. Answered by the event `package-deleted`."""

    digest: str = Field(pattern=DIGEST_PATTERN)
    """At least the first 12 digits of its SHA-256."""


class CheckPackage(Message, kind="check-package.1"):
    """Inspect the wheel, and construct its environments in a sandbox; sent once, when the wheel is complete."""

    tenant: str
    family: str
    package: str = Field(pattern=SHA256_PATTERN)
    """Digest of the package."""
    wheel: BlobRef
    weight: float = Field(default=1.0, gt=0)
    """As in GroupContext."""

    @property
    def claimant(self) -> Claimant:
        return Claimant(self.tenant, f"package-{self.package[:12]}", self.weight)


class OwnEnvironment(Value):
    """One environment of a package."""

    name: str
    """Name, for use in tasks as `own:<name>`."""
    components: list[str] = []
    """Components of its reward."""


class PackageChecked(Message, kind="package-checked.1"):
    """Answer to CheckPackage."""

    tenant: str
    package: str = Field(pattern=SHA256_PATTERN)
    objection: Sentence | None
    """None if every environment was constructed; then `name` and `environments` are set."""
    name: str = ""
    """Normalised name of the package."""
    version: str = ""
    environments: list[OwnEnvironment] = []


def is_own(name: str) -> bool:
    """Whether an environment's name in a task refers to a package. True also for `own` alone, so that it is refused for naming none."""
    return name.partition(":")[0] == OWN_FAMILY


def own_name(environment: str) -> str:
    """Name by which tasks refer to an environment of a package."""
    return f"{OWN_FAMILY}:{environment}"


def wheel_name(tenant: str, digest: str) -> str:
    """Name of the blob with a tenant's wheel, stored unpacked. `digest`: its SHA-256."""
    return f"package-{tenant}-{digest}.whl"


MAX_FILE_BYTES = 512 * 1024 * 1024
FILE_ID_PATTERN = r"file-[0-9a-f]{64}"
"""Pattern of a file's id, which is its digest: equal bytes are the same file."""
FILE_ID = described(rf"^{FILE_ID_PATTERN}$", "the id of a file, file-… with 64 hexadecimal digits")
FILE_FAMILY = "file"
"""Family of the environment with the rows of a file: tasks name it `file:<id>`."""


class UploadFile(UploadedPart, Message, kind="upload-file.1"):
    """Store one part of a file. The last part to arrive starts the check of its rows. Answered by the event `package`. Idempotent."""

    size_bytes: int = Field(ge=1, le=MAX_FILE_BYTES)
    name: str = Field(min_length=1, max_length=255)
    """Name of the file, for people."""


class AskFiles(Message, kind="ask-files.1"):
    after: int = Field(default=0, ge=0, le=MAX_NUMBER)
    """Number of the last file that the client has."""
    file: str | None = Field(default=None, pattern=FILE_ID)
    """Only this file; None: all."""


class AskFileChunk(Message, kind="ask-file-chunk.1"):
    file: str = Field(pattern=FILE_ID)
    offset: int = Field(ge=0, le=MAX_NUMBER)
    """Offset of the part in the file, in bytes."""


class StoredFile(Value):
    """A file uploaded by a tenant."""

    number: int
    """Sort key of answers, and position for the next page."""
    tenant: str
    file: str
    """Id of the file: `file-` and its SHA-256."""
    name: str
    size_bytes: int
    kept_bytes: int
    """Bytes of the parts that have arrived."""
    state: str
    """`uploading`: parts are missing; `usable`; `refused`; `deleting`."""
    reason: Sentence
    """Reason for a refusal; else empty."""
    rows: int
    """Number of rows; 0 until the file is usable."""
    uploaded_s: float
    """Unix time of the upload of its first part."""
    live_tasks: int
    """Number of unfinished tasks that use it."""

    @property
    def digest(self) -> str:
        return self.file.removeprefix("file-")


class FilesAnswer(Message, kind="files-answer.1"):
    files: list[StoredFile]
    """Files by number."""
    has_more: bool
    """Whether there are files after the last one here."""


def is_file(name: str) -> bool:
    """Whether an environment's name in a task refers to a file. True also for `file` alone, so that it is refused for naming none."""
    return name.partition(":")[0] == FILE_FAMILY


def file_id(digest: str) -> str:
    return f"file-{digest}"


def file_blob(tenant: str, digest: str) -> str:
    """Name of the blob with a tenant's file, stored unpacked. `digest`: its SHA-256."""
    return f"file-{tenant}-{digest}.jsonl"


def files_in(text: str) -> set[str]:
    """Digests of the files named in a text, such as a task file as JSON."""
    return {found.removeprefix("file-") for found in re.findall(FILE_ID_PATTERN, text)}
