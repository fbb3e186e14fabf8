"""A controller of oversubscription with its own clock."""

from scheduler_svc.training.decisions.pool_load import OversubscriptionController, PoolLoad

MIN_FACTOR, MAX_FACTOR = 1.5, 8.0


class Watched:
    """A controller with its own clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.controller = OversubscriptionController(MIN_FACTOR, MAX_FACTOR)

    def after(self, seconds: float, *, sampled: float, used: float = 1.0, spent: float = 0.1) -> float:
        """The factor after observing these values every second, with samplers of 100 sequences."""
        for _ in range(round(seconds)):
            self.now_s += 1.0
            self.controller.observe("tiny", PoolLoad(100, sampled, used, spent), self.now_s)
        return self.controller.factor("tiny")
