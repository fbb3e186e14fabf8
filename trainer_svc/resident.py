"""A task's training state as one value, and the few that are kept in memory.

Everything that a step reads and changes is here, so it is parked, restored and dropped together. Training draws no random
numbers (dropout is 0), so there is no generator state.
"""

from collections import OrderedDict
from dataclasses import dataclass

from trainer_svc.lora import Layout
from trainer_svc.optimizer import OptimizerState


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


class Residents:
    """The latest state of the most recently trained tasks, each known by the checkpoint that it was stored as.

    The checkpoint's digest, not the version, says whether a state in memory is the one to go on from: another replica
    may have taken the same step with other rounding.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: OrderedDict[str, tuple[str, Resident]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, task: str, checkpoint_sha256: str) -> Resident | None:
        digest, resident = self._kept.get(task, ("", None))
        if digest != checkpoint_sha256:
            return None
        self._kept.move_to_end(task)
        return resident

    def keep(self, resident: Resident, checkpoint_sha256: str) -> None:
        """Replaces what is kept of this task; the task that waited longest gives way when there are too many."""
        self._kept[resident.task] = (checkpoint_sha256, resident)
        self._kept.move_to_end(resident.task)
        while len(self._kept) > self._limit:
            self._kept.popitem(last=False)

    def forget(self, task: str) -> None:
        self._kept.pop(task, None)
