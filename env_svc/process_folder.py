"""Folder of this process, inside a folder that all replicas with the same data folder on this machine share.

The folder is locked while its process runs. Folders of killed processes are not locked, and the next process that starts removes them.
"""

import fcntl
import os
import shutil
import uuid
from pathlib import Path

LOCK = "lock"


class ProcessFolder:
    def __init__(self, shared: Path) -> None:
        self._shared = shared
        self.path = shared / f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        """Closed to other users; exists from `open` to `close`."""
        self._lock: int | None = None

    def open(self) -> None:
        """Make the folder, and remove those of processes that have ended. Raises: OSError."""
        self._shared.mkdir(parents=True, exist_ok=True)
        opening = _opened_lock(self._shared)
        try:
            fcntl.flock(opening, fcntl.LOCK_EX)  # one at a time: a folder without its lock yet looks left behind
            for other in self._shared.iterdir():
                if other.is_dir() and not _is_locked(other):
                    shutil.rmtree(other, ignore_errors=True)
            self.path.mkdir(mode=0o700)
            self._lock = _opened_lock(self.path)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        finally:
            os.close(opening)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)


def _opened_lock(folder: Path) -> int:
    return os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)


def _is_locked(folder: Path) -> bool:
    """Whether the process that made the folder still runs."""
    lock = _opened_lock(folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False
