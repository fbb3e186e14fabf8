"""What a pool waits for while none of its samplers, or trainers, is awake on a shared accelerator."""

from dataclasses import dataclass

from scheduler_svc.accelerators.decisions.room import Misfit

NEVER_S = float("inf")


@dataclass(frozen=True)
class AcceleratorWait:
    """That all samplers, or all trainers, of a pool wait for shared accelerators; of the one that is expected to wake first."""

    accelerator: str
    wake_s: float
    """Seconds that waking it takes."""
    usual_s: float | None
    """Median seconds between its slices; None before the second."""
    waited_s: float
    is_held: bool = False
    """Whether an operator has parked it."""
    faults: int = 0
    """Attempts to wake it that have failed since it last woke."""
    misfit: Misfit | None = None
    """That it needs more than its accelerator has."""
    has_work: bool = True
    """Whether anything waits for it; else it is parked because its pool has nothing for it."""

    @property
    def left_s(self) -> float:
        return NEVER_S if self.misfit is not None else max(self.wake_s, (self.usual_s or 0.0) - self.waited_s)
