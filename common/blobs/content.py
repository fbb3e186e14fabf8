"""A blob's content on its way out of the store: bounds on its time and size, its digest, and what a failure means."""

import hashlib
import shutil
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from nats.errors import Error as NatsError
from nats.js.errors import BadObjectMetaError, DigestMismatchError, NotFoundError, ObjectNotFoundError

from common.blobs.archive import unpack
from common.errors import Reject, Unavailable
from common.messages import BlobRef

FETCH_TIMEOUT_S = 120.0
"""Minimum timeout (`fetch_timeout_s`): nats-py's `get` waits for ever when the connection breaks under it."""
MIN_BYTES_PER_S = 1024 * 1024
"""Minimum rate at which a blob is fetched before it times out."""


@contextmanager
def fetching(name: str) -> Generator[None]:
    """Raises: Reject when the blob is not in the store, or damaged there; Unavailable for the store's other errors, and the disk's."""
    try:
        yield
    except (DigestMismatchError, BadObjectMetaError):
        raise Reject(f"blob {name}: the store's copy is damaged") from None
    except (ObjectNotFoundError, NotFoundError):
        raise Reject(f"blob {name} is not in the store") from None
    except (TimeoutError, NatsError, OSError) as error:
        raise Unavailable(f"could not fetch blob {name}: {error}") from None


class Bounded:
    """Takes a blob's chunks into a file, which may hold more than the store says of them. `Any`: as nats-py gives them."""

    def __init__(self, ref: BlobRef, file: IO[bytes]) -> None:
        self._ref = ref
        self._file = file

    def write(self, chunk: Any) -> int:
        """Raises: Reject when the blob becomes larger than expected."""
        if self._file.tell() + memoryview(chunk).nbytes > self._ref.size_bytes:
            raise Reject(f"blob {self._ref.name} has more than the expected {self._ref.size_bytes} bytes in the store")
        return self._file.write(chunk)


def fetch_timeout_s(size_bytes: int) -> float:
    """Maximum duration of a blob's fetch."""
    return FETCH_TIMEOUT_S + size_bytes / MIN_BYTES_PER_S


def unpack_blob(ref: BlobRef, packed: bytes, into: Path) -> None:
    """Write the folder that `packed` holds to `into`. Raises: Reject when the digest differs or it holds no plain files only; OSError."""
    check_digest(ref, packed)
    temporary = into.with_name(f"{into.name}.{uuid.uuid4().hex}.part")
    temporary.mkdir(parents=True)
    try:
        unpack(packed, temporary)
        with suppress(OSError):  # another runner was faster
            temporary.rename(into)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_digest(ref: BlobRef, packed: bytes) -> None:
    """Raises: Reject when it is another one."""
    digest = hashlib.sha256(packed).hexdigest()
    if digest != ref.sha256:
        raise Reject(f"blob {ref.name} has SHA-256 {digest}, expected {ref.sha256}: the store's copy is damaged")
