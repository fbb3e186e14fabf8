"""Expected seconds of ready work, and of the time until the next piece of work. Pure."""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from common.accelerators import Function
from scheduler_svc.decisions.accelerators.state import Quantiles

SMOOTHING = 0.2
"""Weight of the newest observation in an estimate's exponentially weighted means."""
MIN_S = 1e-3
"""Minimum of every expected duration, so that no ratio has a zero below."""
NORMAL_P90 = 1.2816
"""90th percentile of the standard normal distribution."""
TAIL = 0.5
"""Expected rest of a wait that is longer than all observed ones, as a share of what it has lasted."""
KNOTS = 32
"""Maximum number of quantiles that latencies are reduced to."""


@dataclass(frozen=True)
class Estimate:
    """Exponentially weighted mean and variance of a duration, in seconds, and the number of observations."""

    mean_s: float
    variance_s2: float = 0.0
    count: int = 0

    def after(self, seconds: float) -> "Estimate":
        """With one more observation. The first replaces the prior."""
        if not self.count:
            return Estimate(max(MIN_S, seconds), 0.0, 1)
        apart = seconds - self.mean_s
        variance = (1 - SMOOTHING) * (self.variance_s2 + SMOOTHING * apart**2)
        return Estimate(max(MIN_S, self.mean_s + SMOOTHING * apart), variance, self.count + 1)


def one_at_a_time(_pieces: int) -> float:
    """Gain of an executor that runs one operation after another."""
    return 1.0


@dataclass(frozen=True)
class Piece:
    """One ready operation of a task: a step's turns to sample, a batch to train on or to score."""

    task: str
    function: Function


def expected(
    pieces: Sequence[Piece],
    estimates: Mapping[tuple[str, Function], Estimate],
    prior: Mapping[Function, Estimate],
    gain: Callable[[int], float] = one_at_a_time,
) -> Quantiles:
    """Seconds until all `pieces` are done by one executor without interruption.

    `estimates`: by task and function; `prior`: of a function, for tasks without one. `gain`: work done per second with so many pieces
    at once, as a multiple of one alone (a sampler's batch); 1 where they run one after another.
    """
    mean_s = variance_s2 = 0.0
    for piece in pieces:
        found = estimates.get((piece.task, piece.function)) or prior[piece.function]
        mean_s += found.mean_s
        variance_s2 += found.variance_s2
    faster = max(1.0, gain(len(pieces)))
    p50_s = max(MIN_S, mean_s / faster)
    return Quantiles(p50_s, p50_s + NORMAL_P90 * math.sqrt(variance_s2) / faster)


@dataclass(frozen=True)
class Latencies:
    """Observed durations of a kind of environment, ascending, in seconds."""

    ordered_s: tuple[float, ...]

    @classmethod
    def of(cls, durations_s: Sequence[float]) -> "Latencies":
        """Reduced to at most `KNOTS` quantiles."""
        ordered = sorted(durations_s)
        if len(ordered) > KNOTS:
            ordered = [ordered[round(knot * (len(ordered) - 1) / (KNOTS - 1))] for knot in range(KNOTS)]
        return cls(tuple(ordered))

    def survival(self, age_s: float, seconds: float) -> float:
        """Probability that a wait which has lasted `age_s` lasts `seconds` more. Beyond all observations the rest is exponential."""
        longer = len(self.ordered_s) - bisect_right(self.ordered_s, age_s)
        if not longer:
            return math.exp(-seconds / max(MIN_S, TAIL * age_s))
        return (len(self.ordered_s) - bisect_right(self.ordered_s, age_s + seconds)) / longer


@dataclass(frozen=True)
class OpenStep:
    """Members that are with their environments and must all return before the next piece of work of their task is ready."""

    latencies: str
    """Key of their environment's latencies."""
    since_s: tuple[float, ...]
    """When each of them went to its environment."""


def gap(now_s: float, open_steps: Sequence[OpenStep], latencies: Mapping[str, Latencies]) -> Quantiles | None:
    """Time until the first of the open steps has its members back; None when none is open whose latencies are known.

    Members are taken as independent: P(gap > t) = Π over steps of (1 - Π over members of P(back within t)).
    """
    found = [(step, latencies.get(step.latencies)) for step in open_steps if step.since_s]
    known = [(step, each) for step, each in found if each is not None and each.ordered_s]
    if not known:
        return None
    longest = max(max(each.ordered_s[-1], 4 * TAIL * (now_s - min(step.since_s))) for step, each in known)

    def survival(seconds: float) -> float:
        still = 1.0
        for step, each in known:
            still *= 1 - math.prod(1 - each.survival(max(0.0, now_s - since), seconds) for since in step.since_s)
        return still

    return Quantiles(_first_below(survival, 0.5, longest), _first_below(survival, 0.1, longest))


def _first_below(survival: Callable[[float], float], level: float, longest: float) -> float:
    """Smallest time, to a thousandth of `longest`, from which the survival is at most `level`."""
    low, high = 0.0, longest
    while high - low > 1e-3 * longest:
        middle = (low + high) / 2
        low, high = (low, middle) if survival(middle) <= level else (middle, high)
    return high
