"""Memory that processes alone have, from the kernel's lists of their mappings.

Pages that a process and its forked child share are private to neither, and become private when one of them ends. Here they count once.

A clean page of a program or library belongs to the kernel's cache of files. The kernel calls it private while no other process maps it,
so 35 MiB of a sampler become private when another program with the same libraries ends. They are reported apart, and freed by no tier.
Pages of other files count: a trainer maps its base model.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

KIB = 1024
CLEAN, DIRTY, COPIED, SHARE = b"Private_Clean:", b"Private_Dirty:", b"Anonymous:", b"Pss_Anon:"


@dataclass(frozen=True)
class Private:
    """Bytes that no other processes have."""

    own: int
    libraries: int
    """Clean pages of programs and libraries."""

    def __add__(self, other: "Private") -> "Private":
        return Private(self.own + other.own, self.libraries + other.libraries)


@dataclass
class _File:
    """Private pages of a mapped file in bytes."""

    clean: int = 0
    dirty: int = 0
    copied: int = 0
    """Of these, pages that the process has written to without changing the file: anonymous memory."""
    is_program: bool = False


def private(processes: Iterable[psutil.Process]) -> Private:
    """Of all these processes, a family; nothing of one that has ended."""
    return sum(map(_of, processes), Private(0, 0))


def _of(process: psutil.Process) -> Private:
    try:
        summary, files = Path(f"/proc/{process.pid}/smaps_rollup").read_bytes(), _files(process.pid)
    except (OSError, ProcessLookupError):
        return Private(0, 0)
    anonymous = sum(_bytes(line) for line in summary.splitlines() if line.startswith(SHARE))
    data = sum(max(0, one.clean + one.dirty - one.copied) for name, one in files.items() if name and not one.is_program)
    return Private(anonymous + data, _libraries(files))


def own_bytes(pid: int) -> int:
    """Private memory of one process, without libraries: for figures that are compared while other programs begin and end.

    Raises: OSError for a process that has ended.
    """
    files = _files(pid)
    return sum(one.clean + one.dirty for one in files.values()) - _libraries(files)


def _libraries(files: Mapping[bytes, _File]) -> int:
    return sum(one.clean for one in files.values() if one.is_program)


def _files(pid: int) -> dict[bytes, _File]:
    """By name; all that is mapped from no file has the empty one."""
    found: dict[bytes, _File] = {}
    file = _File()
    for line in Path(f"/proc/{pid}/smaps").read_bytes().splitlines():
        if b"-" in line[:17]:  # a mapping: its addresses, rights, offset, device, inode, and file
            _, rights, _, _, inode, *path = line.split(maxsplit=5)
            name = path[0] if path and inode != b"0" else b""
            file = found.setdefault(name, _File())
            file.is_program |= bool(name) and b"x" in rights
        elif line.startswith(CLEAN):
            file.clean += _bytes(line)
        elif line.startswith(DIRTY):
            file.dirty += _bytes(line)
        elif line.startswith(COPIED):
            file.copied += _bytes(line)
    return found


def _bytes(line: bytes) -> int:
    return KIB * int(line.split()[1])
