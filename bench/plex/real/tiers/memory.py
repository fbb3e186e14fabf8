"""Private memory of processes, from the kernel's lists of their mappings.

A clean page of a program or library belongs to the kernel's cache of files. The kernel calls it private while no other process maps it,
so 35 MiB of a sampler become private when another program with the same libraries ends. They are reported apart, and freed by no tier.
Pages of other files count: a trainer maps its base model.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

KIB = 1024
CLEAN, DIRTY = b"Private_Clean:", b"Private_Dirty:"


@dataclass(frozen=True)
class Private:
    """Bytes that no other process maps."""

    own: int
    libraries: int
    """Clean pages of programs and libraries."""

    def __add__(self, other: "Private") -> "Private":
        return Private(self.own + other.own, self.libraries + other.libraries)


def private(processes: Iterable[psutil.Process]) -> Private:
    """Of all these processes; nothing of one that has ended."""
    return sum(map(_of, processes), Private(0, 0))


def _of(process: psutil.Process) -> Private:
    try:
        text = Path(f"/proc/{process.pid}/smaps").read_bytes()
    except (OSError, ProcessLookupError):
        return Private(0, 0)
    clean: dict[bytes, int] = {}
    programs = set[bytes]()
    own, file = 0, b""
    for line in text.splitlines():
        if line.startswith(CLEAN):
            clean[file] = clean.get(file, 0) + KIB * int(line.split()[1])
        elif line.startswith(DIRTY):
            own += KIB * int(line.split()[1])
        elif b"-" in line[:17]:  # a mapping: its addresses, rights, offset, device, inode, and file
            _, rights, _, _, inode, *path = line.split(maxsplit=5)
            file = path[0] if path and inode != b"0" else b""
            if file and b"x" in rights:
                programs.add(file)
    libraries = sum(size for name, size in clean.items() if name in programs)
    return Private(own + sum(clean.values()) - libraries, libraries)
