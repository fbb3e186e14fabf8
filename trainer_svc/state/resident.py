"""A task's training state as one value, and the LRU cache of those in memory.

The state holds all that a step reads and changes, so it is evicted and restored as a whole: the task's next step restores an
evicted one from its checkpoint. Training draws no random numbers (dropout is 0), so there is no generator state.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from trainer_svc.model.lora import Layout
from trainer_svc.state.optimizer import OptimizerState
from trainer_svc.state.skips import Skips


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
    """Latest version whose whole state is in a checkpoint; 0: made from the spec, or from another task's adapter."""
    skips: Skips = field(default_factory=Skips)

    @property
    def size_bytes(self) -> int:
        """Bytes on the device: masters and both moments."""
        return 3 * self.optimizer.params.numel() * self.optimizer.params.element_size()


class Residents:
    """LRU cache of the latest states of tasks, by the checkpoint that each was stored as.

    The checkpoint's digest, not the version, decides whether a state can be resumed: another replica may have trained the
    same step with other rounding.
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
        """Store the task's latest state; evict the least recently trained tasks while there are too many, or too large."""
        self._kept[resident.task] = (checkpoint_sha256, resident)
        self._kept.move_to_end(resident.task)
        while len(self._kept) > self._limit or (self._limit_bytes is not None and self.size_bytes > self._limit_bytes):
            self._kept.popitem(last=False)

    def forget(self, task: str) -> None:
        self._kept.pop(task, None)
