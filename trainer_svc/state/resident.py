"""A task's training state as one value, and those that are kept in memory.

Everything that a step reads and changes is here, so it is parked and restored together: parked is what only its checkpoint
holds, from which the next step of the task brings it back. Training draws no random
numbers (dropout is 0), so there is no generator state.
"""

from collections import OrderedDict
from dataclasses import dataclass

from trainer_svc.model.lora import Layout
from trainer_svc.state.optimizer import OptimizerState


@dataclass(frozen=True, eq=False)
class Resident:
    """One version of one task."""

    task: str
    layout: Layout
    optimizer: OptimizerState
    version: int
    """Steps taken; also the position in the learning-rate schedule."""
    next_group: int = 0
    """One more than the highest group trained so far."""
    stored_at: int = 0
    """Latest version on the way here whose whole state is in a checkpoint; 0: the spec's, or another task's adapter."""

    @property
    def size_bytes(self) -> int:
        """On the device: masters and both moments."""
        return 3 * self.optimizer.params.numel() * self.optimizer.params.element_size()


class Residents:
    """The latest state of the most recently trained tasks, each known by the checkpoint that it was stored as.

    The checkpoint's digest, not the version, says whether a state in memory is the one to go on from: another replica
    may have taken the same step with other rounding.
    """

    def __init__(self, limit: int, limit_bytes: int | None = None) -> None:
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[str, tuple[str, Resident]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size_bytes(self) -> int:
        return sum(resident.size_bytes for _, resident in self._kept.values())

    def get(self, task: str, checkpoint_sha256: str) -> Resident | None:
        digest, resident = self._kept.get(task, ("", None))
        if digest != checkpoint_sha256:
            return None
        self._kept.move_to_end(task)
        return resident

    def keep(self, resident: Resident, checkpoint_sha256: str) -> None:
        """Replaces what is kept of this task; the task that waited longest gives way when there are too many, or too large."""
        self._kept[resident.task] = (checkpoint_sha256, resident)
        self._kept.move_to_end(resident.task)
        while len(self._kept) > self._limit or (self._limit_bytes is not None and self.size_bytes > self._limit_bytes):
            self._kept.popitem(last=False)

    def forget(self, task: str) -> None:
        self._kept.pop(task, None)
