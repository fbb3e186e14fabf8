"""Errors of the machine (device, memory, disk), separated from errors that a task causes."""

import errno
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError

from common.accelerators.executors import NoMemory
from common.errors import MEMORY_DELAY_S, Fatal, Retry, Unavailable

DEVICE_ERRORS = ("CUDA error", "CUDA driver error", "CUDA NVRTC error", "cuDNN error", "cuDNN Frontend error", "HIP error")
"""Substrings of errors after which every call fails, for any task, until the process restarts; cuBLAS' begin with the first."""
ALLOCATION_ERRORS = (
    *("DefaultCPUAllocator", "bad_alloc", "could not create a memory object", "can't start new thread"),
    *("out of memory", "ALLOC_FAILED", "ALLOCATION_FAILED"),
    os.strerror(errno.ENOMEM),
)
"""Substrings of the RuntimeError for a lack of memory, where torch has no class for it: torch's and oneDNN's on a CPU; CUDA's, for
page-locked memory and contexts, and those of its libraries, for their handles; and for a file that cannot be mapped."""
IO_ERROR = "os error"
"""Substring of SafetensorError, safetensors' only class, for a disk error."""


def classify_device_error(error: Exception, need: str = "") -> Exception:
    """Map a computation's error to the bus's: Fatal for a broken device, Retry for out of memory; others are returned unchanged.

    `need`: estimated memory, and the setting to lower.
    """
    if is_out_of_memory(error):
        return Retry(f"there is no memory for the step: {_first_line(error)}{need and '; '}{need}", delay_s=MEMORY_DELAY_S)
    if isinstance(error, RuntimeError) and any(name in str(error) for name in DEVICE_ERRORS):
        return Fatal(f"the device cannot be used any more: {_first_line(error)}")
    return error


def classify_move_error(error: Exception, what: str) -> Exception:
    """Map an error while moving `what` to the device: NoMemory for out of memory, Fatal for a broken device, others unchanged."""
    if is_out_of_memory(error):
        return NoMemory(f"there is no memory on the device to wake {what}: {_first_line(error)}")
    return classify_device_error(error)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error or one of its causes is out of memory, even if a library raised its own error for it."""
    causes = list[BaseException]()
    while error not in causes:
        causes.append(error)
        error = error.__cause__ or error.__context__ or error
    return any(_says_no_memory(cause) for cause in causes)


def _says_no_memory(error: BaseException) -> bool:
    match error:
        case torch.OutOfMemoryError() | MemoryError():
            return True
        case OSError():
            return error.errno == errno.ENOMEM
        case RuntimeError():
            return any(name in str(error) for name in ALLOCATION_ERRORS)
        case _:
            return False


@contextmanager
def device_errors(need: str = "") -> Generator[None]:
    """Context that raises errors as mapped by `classify_device_error`."""
    try:
        yield
    except Exception as error:
        found = classify_device_error(error, need)
        if found is error:
            raise
        raise found from None


@contextmanager
def scratch_folder(purpose: str) -> Generator[Path]:
    """Temporary folder, deleted on exit. Raises: Unavailable, naming the folder, if the disk cannot be written or read."""
    place = "a folder for temporary files"
    try:
        place = tempfile.gettempdir()
        with tempfile.TemporaryDirectory(prefix=f"marlaas-{purpose}-") as folder:
            yield Path(folder)
    except (OSError, SafetensorError) as error:
        if isinstance(error, SafetensorError) and IO_ERROR not in str(error):
            raise
        raise Unavailable(f"the disk under {place} cannot be used: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    """First line of the message; torch appends debugging advice."""
    return (str(error).splitlines() or [type(error).__name__])[0]
