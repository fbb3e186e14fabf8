"""A disk for NATS that can be full: a small file system of its own, and a file that fills it."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

SIZE_MIB = 640
BLOBS_MIB = 128
"""Room for blobs on it."""
BLOCK = b"\0" * 2**20


@contextmanager
def small_disk(folder: Path, mib: int = SIZE_MIB) -> Iterator[bool]:
    """`folder` on a file system of `mib` inside the block; False where this user may not mount one."""
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={mib}m"
    mounted = os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def disk_or_skip(folder: Path, mib: int = SIZE_MIB) -> Iterator[None]:
    """The same, in a test that is skipped where this user may not mount one."""
    with small_disk(folder, mib) as mounted:
        if not mounted:
            pytest.skip("this user may not mount a file system")
        yield


def fill(folder: Path) -> None:
    """Fill the file system."""
    with suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while file.write(BLOCK):
            pass


def empty(folder: Path) -> None:
    (folder / "filler").unlink(missing_ok=True)
