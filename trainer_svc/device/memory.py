"""Memory of a trainer: the allocators of glibc and PyTorch, and tensors in mapped files.

The kernel keeps the bytes of a mapped tensor as cached pages of a file, outside this process's memory. On a CPU the device's memory and the
host's are the same. There a state parked in host memory is cached by the kernel, which may reclaim it under pressure after
writing a temporary file's pages to disk. A memfd's pages could be reclaimed only with swap space. The temporary file has no name, so a
killed process leaves none behind.
"""

import ctypes
import gc
import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog
import torch
from torch import Tensor

M_MMAP_THRESHOLD = -3
LARGE_BYTES = 1024 * 1024
WIDE = 512
"""Minimum hidden size at which fresh pages are cheap: from here they cost 2 % of a step, at 128 they cost 50 %."""
GPU_ALLOCATORS = "expandable_segments:True,pinned_max_round_threshold_mb:1"
"""PyTorch's settings on a GPU: segments that grow, because micro-batches of many sizes fragment those of fixed sizes; page-locked memory of
the size that is asked for, not of the next power of two. An operator's PYTORCH_ALLOC_CONF replaces both."""

log = structlog.get_logger()


MADV_DONTNEED = 4


Range = tuple[int, int]
"""First address, and the address after the last."""


def give_large_tensors_their_own_pages(width: int) -> None:
    """Allocate each large tensor of a wide model with its own mmap, so that its memory is returned once it is deleted.

    By default glibc raises the threshold to 32 MiB and cuts smaller tensors out of one heap, which fragments: at 1,024 tokens of a
    0.6 B model in float32 the peak was 1.1 GiB higher. Applies to the whole process; no effect with other C libraries.
    """
    if width < WIDE:
        return
    try:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
    except (AttributeError, OSError) as error:
        log.info("allocator_unchanged", error=str(error))


def set_up_allocators_of_gpu() -> None:
    """Set PyTorch's allocators up for a GPU, unless an operator did. Call it before they have allocated anything."""
    if torch._C._accelerator_getAllocatorSettings():
        return
    try:
        torch._C._accelerator_setAllocatorSettings(GPU_ALLOCATORS)
    except (RuntimeError, ValueError) as error:  # another PyTorch, with other names
        log.warning("allocator_unchanged", error=str(error))


def return_freed_memory(*, collect: bool = False) -> None:
    """Return the process's freed memory to the system (no effect with other C libraries), and what PyTorch keeps of a GPU's memory and of
    page-locked memory. `collect`: free unreferenced cycles first; a model's modules form some."""
    if collect:
        gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError) as error:
        log.info("memory_not_returned", error=str(error))
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch._C._host_emptyCache()


def paged_out(groups: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    """Equal CPU tensors in mapped files, with no page in this process's memory; reading a page maps it again.

    Tensors that are in mapped files already, unchanged, stay there (safetensors of a base model do). The others' bytes are written to an
    unlinked temporary file per group, each storage page-aligned. Tensors of a group that shared a storage still share it.
    Raises: OSError if a file cannot be written or mapped.
    """
    clean = _clean_file_ranges()
    return [_paged_out(tensors, clean) for tensors in groups]


def _paged_out(tensors: Sequence[Tensor], clean: Sequence[Range]) -> list[Tensor]:
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors if tensor.untyped_storage().nbytes()}
    written = {address: storage for address, storage in storages.items() if not _is_within(address, storage.nbytes(), clean)}
    mapped = _mapped(written) if written else {}
    for address, storage in storages.items():
        if address not in mapped:
            _release_pages(address, storage.nbytes())
    return [moved(tensor, mapped) for tensor in tensors]


def moved(tensor: Tensor, storages: Mapping[int, torch.UntypedStorage]) -> Tensor:
    """The tensor on the storage that replaces its own (by address); the tensor itself if none does."""
    found = storages.get(tensor.untyped_storage().data_ptr())
    if found is None:
        return tensor
    return torch.empty(0, dtype=tensor.dtype, device=found.device).set_(found, tensor.storage_offset(), tensor.shape, tensor.stride())


def bytes_of(storage: torch.UntypedStorage) -> Tensor:
    """The storage's bytes as a tensor of shape (size in bytes,) uint8."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (storage.nbytes(),), (1,))


def _mapped(storages: Mapping[int, torch.UntypedStorage]) -> dict[int, torch.UntypedStorage]:
    """Copies of the storages in one mapped file, by the address of the original."""
    starts, end = dict[int, int](), 0
    for address, storage in storages.items():
        starts[address] = end
        end += -(-storage.nbytes() // mmap.PAGESIZE) * mmap.PAGESIZE
    with tempfile.TemporaryFile(prefix="marlaas-parked-") as file:
        os.ftruncate(file.fileno(), end)
        for address, storage in storages.items():
            _write(file.fileno(), bytes_of(storage).numpy().data, starts[address])
        mapping = mmap.mmap(file.fileno(), end, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return {
        address: torch.frombuffer(mapping, dtype=torch.uint8, count=storage.nbytes(), offset=starts[address]).untyped_storage()
        for address, storage in storages.items()
    }


def _write(descriptor: int, content: memoryview, start: int) -> None:
    """Write all of `content`; a single call writes at most 2 GiB."""
    done = 0
    while done < len(content):
        done += os.pwrite(descriptor, content[done:], start + done)


def _release_pages(address: int, size: int) -> None:
    """Unmap the pages of a file's mapping from this process; the file keeps their content."""
    first = address // mmap.PAGESIZE * mmap.PAGESIZE
    ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(address + size - first), MADV_DONTNEED)


def _clean_file_ranges() -> list[Range]:
    """Address ranges of mapped files without pages changed by this process: a changed page exists only in its memory."""
    found, current = list[Range](), None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line[0].islower() or line[0].isdigit():  # header of a mapping; names of its fields are capitalized
            addresses, _, _, _, inode, *_ = line.split()
            first, _, end = addresses.partition("-")
            current = (int(first, 16), int(end, 16)) if inode != "0" else None
        elif current and line.startswith("Anonymous:") and line.split()[1] == "0":
            found.append(current)
    return found


def _is_within(address: int, size: int, ranges: Sequence[Range]) -> bool:
    return any(first <= address and address + size <= end for first, end in ranges)
