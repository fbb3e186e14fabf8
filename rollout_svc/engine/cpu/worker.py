"""vLLM's worker for CPUs, with a sleep that frees memory.

vLLM's own answers `sleep` and `wake_up` on a CPU without an error, and frees nothing: 1015 MiB before and after. This one takes the same
calls as vLLM's worker for GPUs. The KV cache is dropped. Level 1 moves the weights to an anonymous file in memory (`memfd`): host memory
that belongs to no mapping of the process, is counted nowhere as its own, and is gone with the process. Level 2 drops them; `reload_weights`
reads them again. Buffers stay where they are: no checkpoint has them, and without rotary tables log-probabilities are off by 6 nats.

Storages are given back to the allocator, not only their pages. So a wake for which there is no memory fails with an error, and not by
the kernel's choice of a victim. What could not wake is asleep as before."""

import ctypes
import mmap
import os
from typing import Any

import torch
from vllm.model_executor.model_loader.reload import layerwise
from vllm.v1.worker.cpu_worker import CPUWorker

from rollout_svc.engine.footprint import Storages, cache, weights

WEIGHTS, CACHE = "weights", "kv_cache"
"""vLLM's tags of what is woken."""
MADV_DONTNEED = 4
_libc = ctypes.CDLL(None, use_errno=True)


class SleepingCpuWorker(CPUWorker):
    """`sleep` and `wake_up` may be called in any state, and repeated after an error."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._weights: Storages = []
        """Asleep: empty storages, and the bytes that they had."""
        self._cache: Storages = []
        self._file: int | None = None
        """Descriptor of the file that has the weights."""

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
        """Raises: RuntimeError where there is no memory; then what was to wake is asleep."""
        if self._weights and (tags is None or WEIGHTS in tags):
            _allocate(self._weights)
            if self._file is not None:
                _read(self._file, self._weights)
            else:
                _clear(self._weights)  # a parameter that the model's folder lacks has the same value after each wake
            self._drop_file()
            self._weights = []
        if self._cache and (tags is None or CACHE in tags):
            _allocate(self._cache)
            _clear(self._cache)  # attention multiplies what lies behind a sequence by 0, which helps nothing where it is not a number
            self._cache = []

    def reload_weights(self, *args: Any, **kwargs: Any) -> None:
        """vLLM's, which prepares each layer's product anew, with a copy of its weights that nothing would free: the first ones stay.

        Raises: what vLLM raises; then the weights are as after `wake_up`, or wrong, and it may be called again.
        """
        model = self.model_runner.model
        layers = [layer for layer in model.modules() if "cpu_linear" in vars(layer)]
        products = [layer.cpu_linear for layer in layers]
        try:
            super().reload_weights(*args, **kwargs)
        except BaseException:
            _abandon_reload(model)
            raise
        finally:
            for layer, product in zip(layers, products, strict=True):
                layer.cpu_linear = product
            _libc.malloc_trim(0)

    def _drop_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _abandon_reload(model: torch.nn.Module) -> None:
    """Give layers that were not loaded whole their own tensors back: a failed reload leaves them on the device `meta`."""
    for layer in model.modules():
        info = layerwise.get_layerwise_info(layer)
        if info.can_load():
            layerwise._place_kernel_tensors(layer, info)
            info.reset()


def _free(held: Storages) -> None:
    for storage, size in held:
        if storage.resizable():
            storage.resize_(0)
        else:  # something had it as a NumPy array, vLLM's checksums for example
            _clear([(storage, size)])


def _allocate(held: Storages) -> None:
    """All of them, or none. Raises: RuntimeError where there is no memory."""
    try:
        for storage, size in held:
            if storage.nbytes() < size:
                storage.resize_(size)
    except RuntimeError:
        _free(held)
        _libc.malloc_trim(0)
        raise


def _saved(held: Storages) -> int:
    """Descriptor of a new file in memory with the bytes of `held`, one after another. Raises: OSError where there is no memory."""
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
    """Zero everywhere. Whole pages are given back to the kernel, which makes them at their first use, and counts them only then."""
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
