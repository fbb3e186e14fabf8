"""A wake on a GPU that has no memory after its first allocations: what is awake goes back to sleep, and the next wake may be right.

vLLM's worker and allocator are real; the device is host memory that loses its contents when it is unmapped.
"""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from common.accelerators import NoMemory, Tier
from common.errors import Fatal
from rollout_svc.accelerators.tiers import Parking
from rollout_svc.engine.config import EngineSettings
from rollout_svc.engine.footprint import Extension
from tests.rollout.parking.sleeping import no_adapters
from tests.rollout.parking.standing import Llm, Standing, StandingProcess
from tests.support.rollout.requests import POOL

NO_MEMORY = "CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:112"
"""As vLLM's allocator says it."""
SIZE_BYTES = 64
WEIGHTS, BUFFER, GRAPHS, CACHE = 1, 2, 3, 4
"""What each allocation is filled with."""
TAGS = {WEIGHTS: "weights", BUFFER: "weights", GRAPHS: "cudagraph", CACHE: "kv_cache"}
LOST = 255


class Device:
    """Memory for `free` more allocations."""

    def __init__(self) -> None:
        self.memory = {content: torch.full((SIZE_BYTES,), content, dtype=torch.uint8) for content in TAGS}
        self.mapped = {memory.data_ptr() for memory in self.memory.values()}
        self.free = 0

    def create_and_map(self, handle: tuple[int, int, int, int]) -> None:
        if not self.free:
            raise RuntimeError(NO_MEMORY)
        self.free -= 1
        self.mapped.add(handle[2])

    def unmap_and_release(self, handle: tuple[int, int, int, int]) -> None:
        self.mapped.remove(handle[2])
        self.free += 1
        ctypes.memset(handle[2], LOST, SIZE_BYTES)

    def contents(self) -> list[int]:
        return [int(memory[0]) for memory in self.memory.values()]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    from vllm import device_allocator
    from vllm.device_allocator import cumem

    device = Device()
    allocator = cumem.CuMemAllocator()
    for content, memory in device.memory.items():
        handle = (0, SIZE_BYTES, memory.data_ptr(), 0)
        allocator.pointer_to_data[memory.data_ptr()] = device_allocator.AllocationData(handle, TAGS[content])
    monkeypatch.setattr(device_allocator, "get_mem_allocator_instance", lambda: allocator)
    monkeypatch.setattr(cumem, "create_and_map", device.create_and_map)
    monkeypatch.setattr(cumem, "unmap_and_release", device.unmap_and_release)
    monkeypatch.setattr(cumem, "gc", SimpleNamespace(collect=lambda: None))  # seconds, in a process with all of vLLM
    monkeypatch.setattr(cumem, "libcudart", SimpleNamespace(cudaMemcpy=ctypes.memmove))
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda: (device.free, len(TAGS)))
    return device


@pytest.fixture
def worker(device: Device) -> Any:
    """vLLM's worker of a model with one parameter and one buffer."""
    from vllm.device_allocator.sleep_mode_backend import CuMemBackend
    from vllm.v1.worker.gpu_worker import Worker

    class ExtendedWorker(Worker, Extension):
        def __init__(self) -> None:
            model = torch.nn.Module()
            model.weight = torch.nn.Parameter(device.memory[WEIGHTS], requires_grad=False)
            model.register_buffer("table", device.memory[BUFFER])
            self.model_runner: Any = SimpleNamespace(model=model)
            self.model_config: Any = SimpleNamespace(sleep_preserve_parameter_names=(), enable_nccl_comm_suspend=False)
            self.vllm_config: Any = SimpleNamespace(model_config=self.model_config)
            self._sleep_mode_backend = CuMemBackend()
            self._sleep_saved_buffers, self._sleep_saved_parameters, self._sleep_saved_draft_buffers = {}, {}, {}

        def get_draft_model(self) -> None:
            """There is none."""

        def synchronize_device(self) -> None:
            """Nothing is in flight."""

    return ExtendedWorker()


@pytest.mark.parametrize("free", range(4))
def test_worker_that_is_half_awake_from_host_memory_sleeps_with_all_that_it_had(device: Device, worker: Any, free: int) -> None:
    worker.sleep(level=1)
    for _ in range(2):
        device.free = free
        with pytest.raises(RuntimeError, match="out of memory"):
            worker.wake_up()
        worker.marlaas_sleep_again(level=1)
        assert (device.mapped, device.free) == (set(), free)
    device.free = 4
    worker.wake_up()
    assert device.contents() == [WEIGHTS, BUFFER, GRAPHS, LOST]


@pytest.mark.parametrize("free", range(4))
def test_worker_that_is_half_awake_from_disk_sleeps_with_its_buffers(device: Device, worker: Any, free: int) -> None:
    """Its weights are lost and are read again."""
    worker.sleep(level=2)
    for _ in range(2):
        device.free = free
        with pytest.raises(RuntimeError, match="out of memory"):
            worker.wake_up(tags=["weights"])
            device.memory[WEIGHTS].fill_(WEIGHTS)  # they were read
            worker.wake_up(tags=["kv_cache"])
        worker.marlaas_sleep_again(level=2)
        assert (device.mapped, device.free) == (set(), free)
    device.free = 4
    worker.wake_up(tags=["weights"])
    assert device.contents()[1:3] == [BUFFER, GRAPHS]
    assert len(device.mapped) == 3


class FailingLlm(Llm):
    """A GPU's engine in which these methods of the worker fail."""

    def __init__(self, error: str, *failing: str) -> None:
        super().__init__()
        self.error, self.failing = error, failing
        self.calls: list[tuple[str, Any]] = []

    async def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> list[Any]:
        self.calls.append((method, kwargs))
        if method in self.failing:
            raise Exception(f"Call to collective_rpc method failed: {self.error}")
        return await super().collective_rpc(method)


async def parked(tier: Tier, error: str, *failing: str) -> tuple[Parking, FailingLlm]:
    """A GPU's engine that sleeps in this tier."""
    engine = Standing(StandingProcess(EngineSettings.of(POOL), cpu=False))
    parking = Parking(engine, 80 * 2**30)
    await parking.wake(no_adapters)
    engine.process.llm = llm = FailingLlm(error, *failing)
    await parking.park(tier)
    llm.calls.clear()
    return parking, llm


@pytest.mark.parametrize(("tier", "level"), [(Tier.HOST, 1), (Tier.DISK, 2)])
async def test_wake_without_memory_on_a_gpu_is_no_end_of_the_service(tier: Tier, level: int) -> None:
    parking, llm = await parked(tier, NO_MEMORY, "wake_up")
    for _ in range(2):
        with pytest.raises(NoMemory, match="CUDA Error: out of memory"):
            await parking.wake(no_adapters)
        assert parking.tier is tier
    assert [call for call in llm.calls if call[0] != "wake_up"] == [("marlaas_sleep_again", {"level": level})] * 2


async def test_engine_on_a_gpu_that_can_neither_wake_nor_sleep_ends_the_service() -> None:
    parking, _ = await parked(Tier.HOST, "CUDA error: an illegal memory access was encountered", "wake_up", "marlaas_sleep_again")
    with pytest.raises(Fatal, match=r"half awake, and vLLM cannot put that to sleep: .*illegal memory access"):
        await parking.wake(no_adapters)


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.DISK])
async def test_sleep_beside_another_process_that_takes_memory_is_a_sleep(tier: Tier) -> None:
    """vLLM's worker has slept when it finds that less memory is free than before."""
    parking, _ = await parked(tier, "Memory usage increased after sleeping.", "sleep")
    assert parking.tier is tier
    with pytest.raises(Exception, match="no pinned memory"):
        await parked(tier, "no pinned memory", "sleep")
