"""Exponential backoff with jitter."""

import random
from dataclasses import dataclass

JITTER = 0.3
"""Maximum relative deviation of a pause, so that replicas that failed together do not retry together."""


@dataclass(frozen=True)
class Backoff:
    first_s: float
    max_s: float

    def pause_s(self, attempt: int) -> float:
        """Seconds to pause after failed attempt `attempt`, the first being 1; doubles each time, up to `max_s`."""
        return jittered(min(self.max_s, self.first_s * 2.0 ** min(max(attempt, 1) - 1, 32)))


def jittered(pause_s: float) -> float:
    return pause_s * random.uniform(1 - JITTER, 1 + JITTER)
