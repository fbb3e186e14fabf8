"""vLLM's CPU worker, with a sleep that frees memory.

vLLM's own worker accepts `sleep` and `wake_up` on a CPU without an error, and frees nothing: 1015 MiB before and after. This one implements
the calls of vLLM's GPU worker. The KV cache is dropped. Level 1 moves the weights to an anonymous file in memory (`memfd`): host memory
that is mapped by no process, not counted as the process's own, and freed with it. Level 2 drops the weights; `reload_weights`
reads them again. Buffers stay where they are: no checkpoint has them, and without rotary tables log-probabilities are off by 6 nats.

Storages are returned to the allocator, not only their pages. So a wake without enough memory fails with an error instead of invoking
the kernel's OOM killer. State that could not be woken stays asleep.
"""

import ctypes
import mmap
import os
from typing import Any

import torch
from vllm.v1.worker.cpu_worker import CPUWorker

from rollout_svc.engine.footprint import Storages, abandon_reload, cache, weights

WEIGHTS, CACHE = "weights", "kv_cache"
"""vLLM's tags for the parts to wake."""
MADV_DONTNEED = 4
_libc = ctypes.CDLL(None, use_errno=True)


class SleepingCpuWorker(CPUWorker):
    """`sleep` and `wake_up` may be called in any state, and repeated after an error."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._weights: Storages = []
        """While asleep: emptied storages and their sizes in bytes."""
        self._cache: Storages = []
        self._file: int | None = None
        """File descriptor of the in-memory file that holds the weights."""

    def sleep(self, level: int = 1) -> None:
        if not self._cache:
            self._cache = cache(self.model_runner)
            _free(self._cache)
        if not self._weights:
            found = weights(self.model_runner.model)
            if level == 1:
                self._file = _saved(found)
            self._weights = found
            _free(found)
        elif level == 2:
            self._drop_file()
        _libc.malloc_trim(0)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Restore weights and KV cache. Raises: RuntimeError without enough memory; the requested parts then stay asleep."""
        if self._weights and (tags is None or WEIGHTS in tags):
            _allocate(self._weights)
            if self._file is not None:
                _read(self._file, self._weights)
            else:
                _clear(self._weights)  # a parameter missing from the checkpoint is zero after each wake
            self._drop_file()
            self._weights = []
        if self._cache and (tags is None or CACHE in tags):
            _allocate(self._cache)
            _clear(self._cache)  # attention multiplies values behind a sequence by 0, which leaves NaN as NaN
            self._cache = []

    def reload_weights(self, *args: Any, **kwargs: Any) -> None:
        """Reload the weights, but keep the prepared matrix products: vLLM would prepare them again, with a copy that is never freed.

        Raises: what vLLM raises; the weights are then as after `wake_up`, or wrong, and the call may be repeated.
        """
        model = self.model_runner.model
        layers = [layer for layer in model.modules() if "cpu_linear" in vars(layer)]
        products = [layer.cpu_linear for layer in layers]
        try:
            super().reload_weights(*args, **kwargs)
        except BaseException:
            abandon_reload(model)
            raise
        finally:
            for layer, product in zip(layers, products, strict=True):
                layer.cpu_linear = product
            _libc.malloc_trim(0)

    def _drop_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _free(held: Storages) -> None:
    for storage, size in held:
        if storage.resizable():
            storage.resize_(0)
        else:  # another object, such as vLLM's checksums, exported it as a NumPy array
            _clear([(storage, size)])


def _allocate(held: Storages) -> None:
    """Allocate all storages, or none. Raises: RuntimeError without enough memory."""
    try:
        for storage, size in held:
            if storage.nbytes() < size:
                storage.resize_(size)
    except RuntimeError:
        _free(held)
        _libc.malloc_trim(0)
        raise


def _saved(held: Storages) -> int:
    """Write the bytes of `held` to a new in-memory file; return its descriptor. Raises: OSError without enough memory."""
    file = os.memfd_create("marlaas-weights", os.MFD_CLOEXEC)
    try:
        for storage, size in held:
            left = memoryview(_bytes(storage, size))
            while left:  # one call writes 2 GiB at most
                left = left[os.write(file, left) :]
    except BaseException:
        os.close(file)
        raise
    return file


def _read(file: int, held: Storages) -> None:
    os.lseek(file, 0, os.SEEK_SET)
    for storage, size in held:
        left = memoryview(_bytes(storage, size))
        while left:
            count = os.readv(file, [left])
            if count == 0:
                raise RuntimeError("the file of weights that sleep is shorter than they are")
            left = left[count:]


def _clear(held: Storages) -> None:
    """Set all storages to zero. Whole pages are returned to the kernel, which allocates and counts them at their next use."""
    for storage, size in held:
        begin, end = storage.data_ptr(), storage.data_ptr() + size
        first, last = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if first >= last or _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), MADV_DONTNEED):
            ctypes.memset(begin, 0, size)
            continue
        ctypes.memset(begin, 0, first - begin)
        ctypes.memset(last, 0, end - last)


def _bytes(storage: torch.UntypedStorage, size: int) -> Any:
    return (ctypes.c_char * size).from_address(storage.data_ptr())
