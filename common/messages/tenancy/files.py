"""Packages and files of tenants: client → scheduler, in parts; packages also scheduler → environment service, to be checked, and back."""

import re
from typing import Self

from pydantic import Field, model_validator

from common.fairness.fair_queue import Claimant
from common.formats.wrong_values import described
from common.messages.artifacts import SHA256_PATTERN, BlobRef
from common.messages.asks import MAX_NUMBER
from common.messages.base import Message, Sentence, Value
from common.spec import TASK_ID_PATTERN, Name

MAX_PACKAGE_BYTES = 8 * 1024 * 1024
PART_BYTES = 512 * 1024
"""Bytes of each part but the last, below the default bound of a tenant's messages."""
PACKAGE_BLOB = re.compile(r"(package|file)-(?P<tenant>[a-z0-9-]+)-(?P<digest>[0-9a-f]{64})\.(whl|jsonl)")
"""Name of the blob with a tenant's wheel, or with a file of its, which are stored as they are."""
DIGEST_CHARS = 12
"""Digits of a digest that name a package to people, and the fewest that a request may give."""
DIGEST_PATTERN = described(rf"^[0-9a-f]{{{DIGEST_CHARS},64}}$", f"a digest, {DIGEST_CHARS} to 64 hexadecimal digits")
OWN_FAMILY = "own"
"""Family of the environments that tenants upload: tasks name them `own:<environment>[@<digest>]`, the latest without a digest."""


class UploadedPart(Value):
    """One part of what a tenant uploads."""

    tenant: Name
    request: str = Field(pattern=TASK_ID_PATTERN)
    """Id made by the sender, the same in every part, repeated in the answer."""
    digest: str = Field(pattern=SHA256_PATTERN)
    """SHA-256 of the whole."""
    size_bytes: int = Field(ge=1)
    offset: int = Field(ge=0, multiple_of=PART_BYTES)
    data: bytes = Field(min_length=1, max_length=PART_BYTES)

    @model_validator(mode="after")
    def _is_whole_part(self) -> Self:
        if len(self.data) != min(PART_BYTES, self.size_bytes - self.offset):
            raise ValueError(f"the part at {self.offset} has {len(self.data)} bytes, which is not its share of {self.size_bytes}")
        return self


class UploadPackage(UploadedPart, Message, kind="upload-package.1"):
    """Store one part of a wheel. The last part to arrive has it checked. Answered by the event `package`. Harmless when repeated."""

    size_bytes: int = Field(ge=1, le=MAX_PACKAGE_BYTES)


class DeletePackage(Message, kind="delete-package.1"):
    """Delete a package that no live task uses. Answered by the event `package-deleted`."""

    tenant: Name
    request: str = Field(pattern=TASK_ID_PATTERN)
    """As in UploadPackage."""
    digest: str = Field(pattern=DIGEST_PATTERN)
    """The first 12 digits or more of its SHA-256."""


class CheckPackage(Message, kind="check-package.1"):
    """Read the wheel, and construct its environments in a sandbox; sent once, when it is complete."""

    tenant: str
    family: str
    package: str = Field(pattern=SHA256_PATTERN)
    """Its digest."""
    wheel: BlobRef
    weight: float = Field(default=1.0, gt=0)
    """As in GroupContext."""

    @property
    def claimant(self) -> Claimant:
        return Claimant(self.tenant, f"package-{self.package[:12]}", self.weight)


class OwnEnvironment(Value):
    """One environment of a package."""

    name: str
    """Tasks name it `own:<name>`."""
    components: list[str] = []
    """Components of its reward."""


class PackageChecked(Message, kind="package-checked.1"):
    """The answer to CheckPackage."""

    tenant: str
    package: str = Field(pattern=SHA256_PATTERN)
    objection: Sentence | None
    """None when every environment was constructed; then it has a name and environments."""
    name: str = ""
    """Of the package, normalised."""
    version: str = ""
    environments: list[OwnEnvironment] = []


def is_own(name: str) -> bool:
    """Whether a task that names this environment means one of a package. `own` alone does, and names none: it is refused as such."""
    return name.partition(":")[0] == OWN_FAMILY


def own_name(environment: str) -> str:
    """As tasks name an environment of a package."""
    return f"{OWN_FAMILY}:{environment}"


def wheel_name(tenant: str, digest: str) -> str:
    """Name of the blob with a tenant's wheel, which is stored as it is. `digest`: its SHA-256."""
    return f"package-{tenant}-{digest}.whl"


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
