"""What goes wrong with the machine that a step is taken on, told apart from what a task did: its device, its memory, its disk."""

import errno
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError

from common.errors import Fatal, Retry, Unavailable

DEVICE_ERRORS = ("CUDA error", "HIP error")
"""After one of these every call fails, whatever task it is for, until the process is another."""
ALLOCATION_ERRORS = ("DefaultCPUAllocator", "bad_alloc", "could not create a memory object", "can't start new thread")
"""In the RuntimeError that torch and oneDNN raise where a CPU has no memory left: they have no class for it."""
MEMORY_DELAY_S = 30.0
"""Until a step is tried again for which there was no memory: a neighbour may have it."""
IO_ERROR = "os error"
"""safetensors has one class for all that goes wrong, a full disk too."""


def classify_device_error(error: Exception, need: str = "") -> Exception:
    """The error of a computation as the bus should take it: Fatal for a device that broke, Retry for memory that is used up,
    any other as it is. `need`: what the computation is estimated to take, and the setting to lower."""
    if _is_out_of_memory(error):
        return Retry(f"there is no memory for the step: {_first_line(error)}{need and '; '}{need}", delay_s=MEMORY_DELAY_S)
    if isinstance(error, RuntimeError) and any(name in str(error) for name in DEVICE_ERRORS):
        return Fatal(f"the device cannot be used any more: {_first_line(error)}")
    return error


def _is_out_of_memory(error: Exception) -> bool:
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
    """Raises: what `classify_device_error` makes of an error inside."""
    try:
        yield
    except Exception as error:
        found = classify_device_error(error, need)
        if found is error:
            raise
        raise found from None


@contextmanager
def scratch_folder(purpose: str) -> Generator[Path]:
    """A folder that is deleted afterwards. Raises: Unavailable, naming the folder, when the disk does not take what is written there,
    or does not give it back."""
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
    """Without the advice about debugging that follows in torch's."""
    return (str(error).splitlines() or [type(error).__name__])[0]
