"""A task's training state as one value, and the LRU caches of states in memory.

The state contains everything that a step reads and changes, so it is evicted and restored as a whole: the task's next step restores an
evicted state from its checkpoint. Training draws no random numbers (dropout is 0), so there is no generator state.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import structlog
import torch
from torch import Tensor

from common.accelerators.executors import Tier
from trainer_svc.device.errors import is_out_of_memory
from trainer_svc.device.memory import paged_out
from trainer_svc.model.lora import Layout
from trainer_svc.state.optimizer import OptimizerState, Skips

log = structlog.get_logger()

InThread = Callable[[Callable[[], "list[Resident | None]"]], Awaitable["list[Resident | None]"]]


@dataclass(frozen=True, eq=False)
class Resident:
    """Training state of one version of a task."""

    task: str
    layout: Layout
    optimizer: OptimizerState
    version: int
    """Steps trained; also the position in the learning-rate schedule."""
    next_group: int = 0
    """One more than the highest group ever trained."""
    stored_at: int = 0
    """Latest version whose whole state is in a checkpoint; 0: derived from the spec, or from another task's adapter."""
    skips: Skips = field(default_factory=Skips)

    @property
    def size_bytes(self) -> int:
        """Bytes on the device: masters and both moments."""
        return 3 * self.optimizer.params.numel() * self.optimizer.params.element_size()


class Residents:
    """Latest states of tasks, by the checkpoint in which each is stored: LRU on the device, then LRU in host memory, then dropped.

    The checkpoint's digest, not the version, decides whether a state can be resumed: another replica may have trained the
    same step with different rounding. On a CPU the device's memory is the host's: states evicted from the device are dropped. While the
    trainer is parked no state is on the device; states that are in no checkpoint are kept, as they would cost steps to recompute.
    """

    def __init__(self, limit: int, limit_bytes: int | None = None, host_bytes: int = 0) -> None:
        """`limit`, `limit_bytes`: for states on the device; `host_bytes`: for states that a GPU's trainer additionally keeps in host
        memory."""
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._host_limit_bytes = host_bytes
        self._parked_in: Tier | None = None
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size_bytes(self) -> int:
        """Bytes of states on the device, or, while parked, of states that would return to it."""
        return sum(kept.resident.size_bytes for kept in self._kept.values() if not kept.on_host)

    @property
    def host_bytes(self) -> int:
        return sum(kept.resident.size_bytes for kept in self._kept.values() if kept.on_host)

    @property
    def ranks(self) -> list[int]:
        return [kept.resident.layout.rank for kept in self._kept.values()]

    def get(self, task: str, checkpoint_sha256: str) -> Resident | None:
        """The task's state, moved to its device; None if it is not in memory under this digest."""
        kept = self._kept.get(task)
        if kept is None or kept.digest != checkpoint_sha256:
            return None
        self._kept.move_to_end(task)
        if kept.on_host:
            kept = self._kept[task] = replace(kept, resident=on_device(kept.resident, kept.device), on_host=False)
            self._make_room()
        return kept.resident

    def keep(self, resident: Resident, checkpoint_sha256: str) -> None:
        """Store the task's latest state; evicts the least recently trained tasks while the states exceed a limit."""
        self._kept[resident.task] = _Kept(checkpoint_sha256, resident, resident.optimizer.params.device)
        self._kept.move_to_end(resident.task)
        self._make_room()

    def forget(self, task: str) -> None:
        self._kept.pop(task, None)

    async def park(self, tier: Tier, in_thread: InThread = asyncio.to_thread) -> None:
        """Move all states from the device to host memory. In tiers deeper than `host`, states that are in a checkpoint are dropped instead.

        `in_thread`: runs a function in another thread. That thread may keep the function's arguments, which are states on the device, until
        it runs the next function.
        """
        if tier is Tier.DEVICE:
            return
        self._parked_in = tier
        kept = list(self._kept.values())
        self._replace(kept, await in_thread(partial(parked, [one.resident for one in kept], tier)))

    async def park_late(self, task: str, in_thread: InThread = asyncio.to_thread) -> None:
        """Move a state that was stored while the trainer is parked off the device; no-op while it is awake."""
        if self._parked_in is not None and (kept := self._kept.get(task)) is not None:
            self._replace([kept], await in_thread(partial(parked, [kept.resident], self._parked_in)))

    def wake(self) -> None:
        """Allow states on the device; each returns with its task's next step."""
        self._parked_in = None

    def _replace(self, kept: Sequence["_Kept"], found: Sequence[Resident | None]) -> None:
        """Replace states in memory by their moved copies; a state that was trained or dropped meanwhile is left unchanged."""
        for before, resident in zip(kept, found, strict=True):
            task = before.resident.task
            if self._kept.get(task) is not before:
                continue
            if resident is None:
                del self._kept[task]
            else:
                self._kept[task] = replace(before, resident=resident, on_host=before.device.type != "cpu")

    def _make_room(self) -> None:
        """While a limit is exceeded, move the least recently trained tasks from the device to the host, and drop those on the host."""
        on_device_ = [task for task, kept in self._kept.items() if not kept.on_host]
        while on_device_ and (len(on_device_) > self._limit or (self._limit_bytes is not None and self.size_bytes > self._limit_bytes)):
            task = on_device_.pop(0)
            kept = self._kept[task]
            fits = kept.device.type != "cpu" and kept.resident.size_bytes <= self._host_limit_bytes
            if fits and (copy := pinned(kept.resident)) is not None:
                self._kept[task] = replace(kept, resident=copy, on_host=True)
            else:
                del self._kept[task]
        on_host = [task for task, kept in self._kept.items() if kept.on_host]
        while on_host and self.host_bytes > self._host_limit_bytes:
            del self._kept[on_host.pop(0)]


@dataclass(frozen=True, eq=False)
class _Kept:
    digest: str
    resident: Resident
    device: torch.device
    """Device on which the state is trained, wherever it is now."""
    on_host: bool = False


def parked(residents: Sequence[Resident], tier: Tier) -> list[Resident | None]:
    """The states moved from their device to mapped temporary files, which the kernel caches in host memory; None for a dropped state.

    In tiers deeper than `host`, states that are in a checkpoint are dropped, and read from it when needed. If a file cannot be written, all
    states are dropped; those that are in no checkpoint are recomputed.
    """
    stays = [one for one in residents if tier is Tier.HOST or one.stored_at != one.version]
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()  # copies to page-locked memory may still be queued (`pinned`)
    try:
        vectors = paged_out([[vector.cpu() for vector in one.optimizer.vectors] for one in stays])
    except OSError as error:
        log.warning("states_dropped", tasks=[one.task for one in stays], reason=str(error))
        return [None] * len(residents)
    moved = {one.task: with_vectors(one, found) for one, found in zip(stays, vectors, strict=True)}
    return [moved.get(one.task) for one in residents]


def pinned(resident: Resident) -> Resident | None:
    """A GPU's state copied to page-locked host memory; None if there is none. Copies both ways are queued on the device: neither blocks."""
    try:
        copies = [torch.empty_like(vector, device="cpu", pin_memory=True) for vector in resident.optimizer.vectors]
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        log.warning("states_dropped", tasks=[resident.task], reason=str(error))
        return None
    for copy, vector in zip(copies, resident.optimizer.vectors, strict=True):
        copy.copy_(vector, non_blocking=True)
    return with_vectors(resident, copies)


def on_device(resident: Resident, device: torch.device) -> Resident:
    return with_vectors(resident, [vector.to(device, non_blocking=True) for vector in resident.optimizer.vectors])


def with_vectors(resident: Resident, vectors: Sequence[Tensor]) -> Resident:
    return replace(resident, optimizer=OptimizerState(*vectors, steps=resident.optimizer.steps))
