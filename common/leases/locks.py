"""Locks of an accelerator: files in a folder that all its executors share; one folder per accelerator, on one host.

    compute.lock        exclusive while an executor is awake, or moves its state
    <executor>.memory   exclusive while that executor has anything on the device; content: its bytes

A lock (flock(2)) belongs to an open file. Forked processes share the lock, and the kernel frees it when the last of them has died. So a
memory entry counts exactly as long as a process lives that may have the memory, and an engine that outlives its parent keeps both locks.
Spawned processes share a lock only if `Locks.descriptors` are passed to them, as `rollout_svc/engine/start.py` does.
"""

import fcntl
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from common.errors import Fatal

COMPUTE = "compute.lock"
MEMORY = ".memory"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
DIGITS = 20
"""Digits of a memory entry: a fixed number, so that each write replaces the previous one completely."""


@dataclass(frozen=True)
class Holders:
    """Locks held in an accelerator's folder at one moment."""

    computing: bool
    memory: Mapping[str, int]
    """Bytes on the device by executor; -1 if the entry cannot be read."""


class Locks:
    """Locks of one executor, held by its process and the processes that it forks."""

    def __init__(self, folder: Path, executor: str) -> None:
        """Creates the folder and its files. Raises: Fatal if it cannot write or lock them."""
        self._folder = folder
        self._own = f"{executor}{MEMORY}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._compute, self._memory = _opened(folder / COMPUTE), _opened(folder / self._own)
            if _is_free(self._memory):  # detects a full disk, or a file system without locks, at the start
                os.pwrite(self._memory, _entry(0), 0)
        except OSError as error:
            raise Fatal(
                f"MARLAAS_ACCELERATORS_DIR: {folder} cannot be used for locks ({error.strerror}); give a folder that all executors of "
                "this host can write"
            ) from None
        self.identity = _identity(self._compute)
        """Identity of compute.lock: equal for processes that exclude each other. None if the kernel does not provide it."""
        self.computes = False
        """Whether this executor holds compute.lock."""
        self.is_entered = False
        """Whether this executor's memory entry is locked, because it has, or may have, state on the device."""

    @property
    def descriptors(self) -> tuple[int, int]:
        """File descriptors for spawned processes that compute for this executor."""
        return self._compute, self._memory

    def take_compute(self) -> bool:
        """Try to take compute.lock; returns whether this executor holds it now."""
        self.computes = self.computes or _lock(self._compute)
        return self.computes

    def release_compute(self) -> None:
        fcntl.flock(self._compute, fcntl.LOCK_UN)
        self.computes = False

    def reserve(self, size: int, budget: int) -> str | None:
        """Enter `size` bytes for this executor if all entries together stay within `budget`. Returns None, or the reason why it did not.

        Call only while holding compute.lock: others' entries can then only shrink. Raises: Fatal if the entry cannot be written.
        """
        assert self.computes
        if not self.is_entered and not _lock(self._memory):
            return "an earlier process of this executor still has memory on the device"
        if (shortage := self.shortage(size, budget)) is None:
            self._write(size)
            self.is_entered = True
        elif not self.is_entered:
            fcntl.flock(self._memory, fcntl.LOCK_UN)
        return shortage

    def shortage(self, size: int, budget: int) -> str | None:
        """Reason why `size` bytes in addition to others' entries exceed `budget`; None if they fit at this moment."""
        others = {name: held for name, held in _memory_held(self._folder).items() if f"{name}{MEMORY}" != self._own}
        if unreadable := sorted(name for name, held in others.items() if held < 0):
            return f"the device memory of {', '.join(unreadable)} is unknown"
        if size > budget:
            return (
                f"{size} bytes are needed on the device, of {budget} for all its executors: raise memory_gib of the accelerator, or lower "
                "kv_cache_gib (of a sampler; on a GPU gpu_memory_share) or train_tokens (of a trainer)"
            )
        if sum(others.values()) + size > budget:
            holders = ", ".join(f"{name} {held}" for name, held in sorted(others.items())) or "no other executor"
            return f"{size} bytes are needed on the device, of {budget}; held by {holders}"
        return None

    def release_memory(self) -> None:
        """Remove the memory entry: this executor has nothing on the device any more."""
        if self.is_entered:
            self._write(0)
            fcntl.flock(self._memory, fcntl.LOCK_UN)
            self.is_entered = False

    def close(self) -> None:
        """Close the files; locks stay held by forked processes."""
        for descriptor in self.descriptors:
            os.close(descriptor)

    def _write(self, size: int) -> None:
        try:
            os.pwrite(self._memory, _entry(size), 0)
        except OSError as error:
            raise Fatal(f"MARLAAS_ACCELERATORS_DIR: {self._folder / self._own} cannot be written ({error.strerror})") from None


def holders(folder: Path) -> Holders:
    """Locks held in an accelerator's folder; the check locks its files for some microseconds."""
    return Holders(computing=_is_held(folder / COMPUTE), memory=_memory_held(folder))


def _memory_held(folder: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for path in folder.glob(f"*{MEMORY}"):
        if _is_held(path):
            found[path.name.removesuffix(MEMORY)] = _size(path)
    return found


def _size(path: Path) -> int:
    with suppress(OSError, ValueError):
        return int(path.read_bytes())
    return -1


def _entry(size: int) -> bytes:
    return b"%0*d\n" % (DIGITS, size)


def _identity(descriptor: int) -> str | None:
    """Identity of a file, and of the kernel that keeps its lock. It differs between hosts, and for a file that was deleted and
    recreated."""
    with suppress(OSError):
        about = os.fstat(descriptor)
        return f"{BOOT_ID.read_text().strip()}:{about.st_dev}:{about.st_ino}"
    return None


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o664)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def _is_free(descriptor: int) -> bool:
    """Whether no other process has locked this file. Raises: OSError if the file system has no locks."""
    free = _lock(descriptor)
    if free:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    return free


def _is_held(path: Path) -> bool:
    """Whether a process holds the file's exclusive lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # explicitly: a child that another thread forks now also has this file open
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
