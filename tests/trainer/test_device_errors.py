"""Errors of a device by their texts, which are those of PyTorch's `ATen/cuda/Exceptions.h` and `c10/cuda`.

Without memory a step is retried; a broken device is fatal.
"""

import pytest
import torch

from common.accelerators.executors import NoMemory
from common.errors import Fatal, Retry
from trainer_svc.device.errors import classify_device_error, classify_move_error

NO_MEMORY = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB"),
    torch.AcceleratorError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA driver error: out of memory"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
)
BROKEN = (
    torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa)`"),
    RuntimeError("CUDA driver error: unspecified launch failure"),
    RuntimeError("CUDA NVRTC error: NVRTC_ERROR_COMPILATION"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph."),
)


@pytest.mark.parametrize("error", NO_MEMORY, ids=str)
def test_step_without_memory_is_retried_and_a_wake_without_it_can_be_tried_later(error: Exception) -> None:
    first = str(error).splitlines()[0]
    found = classify_device_error(error, "lower train_tokens")
    assert isinstance(found, Retry)
    assert str(found) == f"there is no memory for the step: {first}; lower train_tokens"
    moved = classify_move_error(error, "the base model")
    assert isinstance(moved, NoMemory)
    assert str(moved) == f"there is no memory on the device to wake the base model: {first}"


@pytest.mark.parametrize("error", BROKEN, ids=str)
def test_broken_device_ends_the_process(error: Exception) -> None:
    for found in (classify_device_error(error), classify_move_error(error, "the base model")):
        assert isinstance(found, Fatal)
        assert str(found) == f"the device cannot be used any more: {str(error).splitlines()[0]}"


def test_error_of_a_task_is_its_own() -> None:
    error = RuntimeError("The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 0")
    assert classify_device_error(error) is error
