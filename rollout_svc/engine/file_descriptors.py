"""What the engine's process has from the service: an end with it, the accelerator's locks, and a file for the reason of a failure.

A forked child has the service's open files by itself, and calls `belong_to` at the fork. A spawned one, as on a GPU, gets only those files
that multiprocessing is told of. `Inherited` is part of what is pickled for it: pickled, it tells multiprocessing its files; unpickled, it
calls `belong_to`, after the child's imports and before anything of the engine is made.
"""

import ctypes
import logging
import os
import signal
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
ENGINE_LOGGER = "vllm.v1.engine.core"
"""Logger to which vLLM's engine process writes the exception that ends it. The service itself is only told that it has ended."""
MAX_REASON_BYTES = 4096


class Inherited:
    """Files of the service that its engine's process must have, too."""

    def __init__(self, failure: int, locks: Sequence[int]) -> None:
        """`failure`: descriptor of `failure_file`. `locks`: descriptors of locks (`Locks.descriptors`)."""
        self._failure = failure
        self._locks = tuple(locks)

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is None:  # a copy within the service
            return Inherited, (self._failure, self._locks)
        return _arrived, (os.getpid(), DupFd(self._failure), [DupFd(each) for each in self._locks])

    def missing_in(self, pid: int) -> bool:
        """Whether that process has not all of these files, under their numbers here."""
        return not all(_is_open_in(pid, descriptor) for descriptor in (self._failure, *self._locks))


def _arrived(service: int, failure: Any, locks: Sequence[Any]) -> Inherited:
    """In the spawned child. Its own children have the locks only where they are forked: an engine of theirs is not."""
    inherited = [each.detach() for each in (failure, *locks)]
    for descriptor in inherited:
        os.set_inheritable(descriptor, False)
    belong_to(service, inherited[0])
    return Inherited(inherited[0], inherited[1:])


def _is_open_in(pid: int, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(Path(f"/proc/{pid}/fd/{descriptor}").stat(), os.fstat(descriptor))
    return False


def belong_to(service: int, failure: int) -> None:
    """Make this process, a child of the process `service`, one that ends with the thread that started it, and notes why it fails."""
    # Otherwise the terminal's Ctrl-C would end the engine while the service still returns its messages.
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != service:  # it has died before
        os._exit(1)
    logging.getLogger(ENGINE_LOGGER).addFilter(partial(_note, failure))  # a handler would be removed when vLLM configures its loggers


def _note(failure: int, record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        os.ftruncate(failure, 0)
        os.pwrite(failure, f"{type(error).__name__}: {error}".encode()[:MAX_REASON_BYTES], 0)
    return True


@contextmanager
def failure_file() -> Generator[int]:
    """Descriptor of an anonymous file in memory, to which the engine's process writes the exception that ends it."""
    descriptor = os.memfd_create("marlaas-engine-failure", os.MFD_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def noted(failure: int) -> str:
    """The exception that ended the engine's process, its type first; empty where it wrote none."""
    return os.pread(failure, MAX_REASON_BYTES, 0).decode(errors="replace")
