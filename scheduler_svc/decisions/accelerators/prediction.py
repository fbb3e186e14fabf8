"""Expected seconds of an operation, and of the time until the next piece of work. Pure."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from common.accelerators import Function
from scheduler_svc.decisions.accelerators.state import Quantiles

PRIOR_S = {Function.GENERATE: 1.0, Function.TRAIN: 2.0, Function.SCORE: 2.0}
"""Seconds of an operation before the first was measured. A step is one, also while it scores."""
MIN_S = 1e-3
"""Minimum of every expected duration, so that no ratio has a zero below."""
TAIL = 0.5
"""Expected rest of a wait that is longer than all observed ones, as a share of what it has lasted."""
KNOTS = 32
"""Maximum number of quantiles that latencies are reduced to."""
HORIZON_S = 600.0
"""Maximum expected time until the next piece of work; beyond it nothing is told apart."""
EXPONENTIAL = (*(-math.log(1 - number / 8) for number in range(1, 8)), -math.log(1 / 16))
"""Rests of a wait of which nothing was observed, ascending, as multiples of their mean, each with a chance of an eighth."""


def piece_s(measured_s: float | None, function: Function) -> float:
    """Expected seconds of one operation. `measured_s`: the mean that its executor measured, in its batches; None before the first."""
    return max(MIN_S, measured_s) if measured_s else PRIOR_S[function]


@dataclass(frozen=True)
class Latencies:
    """Observed durations of a kind of wait, ascending, in seconds."""

    ordered_s: tuple[float, ...]

    @classmethod
    def of(cls, durations_s: Sequence[float]) -> "Latencies":
        """Reduced to at most `KNOTS` quantiles."""
        ordered = sorted(durations_s)
        if len(ordered) > KNOTS:
            ordered = [ordered[round(knot * (len(ordered) - 1) / (KNOTS - 1))] for knot in range(KNOTS)]
        return cls(tuple(ordered))

    def steps(self, age_s: float, chance: float = 1.0, power: float = 1.0) -> list[tuple[float, float]]:
        """Of a wait that has lasted `age_s`: seconds from now, and factors by which the probability that it lasts longer falls there.

        `chance`: that it ever ends, as it was when it began; the longer it lasts, the less likely it is. Beyond all observations the rest
        is exponential. `power`: number of waits that this one stands for.
        """
        longer = self.ordered_s[bisect_right(self.ordered_s, age_s) :]
        if chance < 1:
            lasting = chance * max(len(longer), 0.5) / len(self.ordered_s)
            chance = lasting / (lasting + 1 - chance)
        rests_s = [each - age_s for each in longer] or [rest * max(MIN_S, TAIL * age_s) for rest in EXPONENTIAL]
        left = [1 - chance * number / len(rests_s) for number in range(len(rests_s) + 1)]
        return [(rest_s, (after / before) ** power) for rest_s, before, after in zip(rests_s, left[:-1], left[1:], strict=True)]


@dataclass(frozen=True)
class OpenWork:
    """Waits of a task, each of which ends with a piece of work: a member's next prompt for a sampler, or a step's batch for a trainer.

    Of a step, all members must return before there is a batch; that is one wait, from when its last turn was sent.
    """

    latencies: Latencies
    """How long such waits lasted."""
    since_s: tuple[float, ...]
    """When each of them began."""
    chances: tuple[float, ...] = ()
    """Of each: the chance, when it began, that it ever ends; a member's last turn is followed by none. Empty: they are certain."""
    waits: int = 0
    """Number that they stand for; 0: no others."""


def gap(now_s: float, open_work: Sequence[OpenWork]) -> Quantiles | None:
    """Time until the first of the waits ends, at most HORIZON_S; None when there is none whose latencies are known.

    Waits are taken as independent: P(gap > t) = Π over waits of P(wait > t).
    """
    steps: list[tuple[float, float]] = []
    for one in open_work:
        if not one.latencies.ordered_s or not one.since_s:
            continue
        power = max(1.0, one.waits / len(one.since_s))
        for since_s, chance in zip(one.since_s, one.chances or (1.0,) * len(one.since_s), strict=True):
            steps += one.latencies.steps(max(0.0, now_s - since_s), chance, power)
    if not steps:
        return None
    p50_s, still = HORIZON_S, 1.0
    for seconds, factor in sorted(steps):
        still *= factor
        if still <= 0.5:
            p50_s = min(p50_s, seconds)
        if still <= 0.1:
            return Quantiles(p50_s, min(HORIZON_S, seconds))
    return Quantiles(p50_s, HORIZON_S)
