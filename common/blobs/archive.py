"""A folder as bytes: an uncompressed tar of its plain files.

The bytes may come from a stranger: neither compressed nor sparse archives are read, so that nothing unpacks to more than its own size,
and nothing is written outside the folder.
"""

import io
import shutil
import tarfile
from pathlib import Path, PurePosixPath

from common.errors import Reject

MAX_FILES = 10_000
"""Maximum files of a folder; those of adapters, checkpoints and batches are a few."""
MAX_NAME_BYTES = 255
"""Maximum length of a file's path inside its folder: every file system takes it."""


def pack(folder: Path) -> bytes:
    """The folder's files, the same bytes for the same content. Raises: OSError."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                info = tarfile.TarInfo(str(path.relative_to(folder)))
                info.size = path.stat().st_size
                with path.open("rb") as content:
                    archive.addfile(info, content)
    return buffer.getvalue()


def unpack(packed: bytes, folder: Path) -> None:
    """Write the files into an empty folder.

    Raises: Reject when the bytes are no such archive, or hold anything but plain files with relative names; OSError of the disk.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:  # with "r" it would also decompress
            _extract(archive, folder, room=len(packed))
    except (tarfile.TarError, UnicodeError) as error:
        raise Reject(f"a blob is no archive of a folder: {error}") from None


def _extract(archive: tarfile.TarFile, folder: Path, *, room: int) -> None:
    """`extractall` has a filter for names and links only from Python 3.11.4, and none for sizes."""
    written: set[Path] = set()
    for info in archive:
        target = folder / _relative(info)
        if len(written) >= MAX_FILES or info.size > room:
            raise Reject(f"a blob holds more than {MAX_FILES} files, or more bytes than it has")
        if target in written or not written.isdisjoint(target.parents) or target.is_dir():
            raise Reject(f"a blob holds '{info.name}' twice, as a file and as another or a folder")
        room -= info.size
        written.add(target)
        content = archive.extractfile(info)
        assert content is not None
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            shutil.copyfileobj(content, file)


def _relative(info: tarfile.TarInfo) -> PurePosixPath:
    """The file's path inside the folder. Raises: Reject for links, devices, sparse files, and absolute or upward names."""
    path = PurePosixPath(info.name)
    is_plain = info.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not info.issparse()
    is_inside = bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in info.name
    if not is_plain or not is_inside or len(info.name.encode()) > MAX_NAME_BYTES:
        raise Reject(f"a blob holds '{info.name[:MAX_NAME_BYTES]}', which is not a plain file inside it")
    return path
