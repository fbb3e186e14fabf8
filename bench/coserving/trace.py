"""Arrivals of served requests: a day in the shape of ROSE's trace (arXiv 2605.06534), compressed."""

from collections.abc import Callable
from math import cos, pi
from random import Random

MINUTES = 10
"""Parts of a day; its busiest one has `PEAK` times the mean."""
PEAK, BURST = 1.7, 4.2
"""Rates of the busiest minute and of the busiest seconds, as multiples of the mean."""
BURST_SHARE = 1 / 30
"""Fraction of each minute that is a burst."""
MEAN_SHARE = 0.189
"""Mean rate, as a fraction of what serving alone attains."""


def day(seconds: float) -> Callable[[float], float]:
    """Rate at a moment of a day of that length, as a multiple of the mean."""
    minute_s = seconds / MINUTES

    def rate(at_s: float) -> float:
        minute, within = divmod(at_s / minute_s, 1.0)
        if 0.5 <= within < 0.5 + BURST_SHARE:
            return BURST
        mean = 1.0 - (PEAK - 1.0) * cos(2 * pi * minute / MINUTES)
        return (mean - BURST * BURST_SHARE) / (1.0 - BURST_SHARE)

    return rate


def arrivals(mean: float, seconds: float, seed: int, rate: Callable[[float], float] = lambda _: 1.0) -> list[float]:
    """Times of a Poisson process with `mean` requests a second times `rate`, which is at most `BURST`."""
    random, found, at_s = Random(seed), list[float](), 0.0
    while (at_s := at_s + random.expovariate(mean * BURST)) < seconds:
        if random.random() < rate(at_s) / BURST:
            found.append(at_s)
    return found
