"""Uncertainty of a mean reward: standard errors, 95 % intervals, paired differences. Pure.

Prompts are the independent draws of an evaluation: attempts at one prompt resemble each other and form a cluster. So standard errors are
those of a ratio estimator over clusters (arXiv 2411.00640, section 2.2), and intervals use Student's t for few prompts.

Rewards of 0 and 1 get Wilson's score interval at the effective number of attempts, p(1 − p) / error² (Korn and Graubard, 1998): it has a
positive width even if all attempts earned the same, and covers small shares. docs/evaluation.md has the coverage.
"""

import hashlib
import json
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import atan, cos, isfinite, isnan, nan, pi, sin, sqrt
from statistics import NormalDist, fmean
from sys import byteorder
from typing import Literal, Self

from pydantic import JsonValue

from common.messages import Event, from_json
from common.messages.base import Value
from common.spec import MAIN_PROTOCOL, Protocol, TaskSpec

CONFIDENCE = 0.95
NORMAL_QUANTILE = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
MIN_PROMPTS = 2
"""Minimum prompts for an estimate of the variance between prompts."""
MIN_DESIGN_EFFECT = 0.3
"""Minimum ratio of the variance to that of independent attempts: with few prompts, the estimated ratio may be too small by chance."""
MAX_DEGREES = 2000
"""Degrees of freedom from which the normal quantile replaces Student's: they differ by less than 0.1 %."""


@dataclass(frozen=True)
class Estimate:
    """A mean and its uncertainty."""

    mean: float
    standard_error: float | None
    """None for fewer than MIN_PROMPTS prompts."""
    interval: tuple[float, float] | None
    """Bounds of the 95 % interval; None if `standard_error` is None."""


@dataclass(frozen=True)
class Difference:
    """Mean difference of two versions' rewards at the same prompts."""

    mean: float
    standard_error: float | None
    interval: tuple[float, float] | None
    prompts: int
    """Number of prompts at which both versions have scored attempts."""


def is_binary(rewards_by_prompt: Sequence[Sequence[float]]) -> bool:
    return all(reward in (0.0, 1.0) for rewards in rewards_by_prompt for reward in rewards)


def mean_reward(rewards_by_prompt: Sequence[Sequence[float]]) -> Estimate:
    """Mean over all attempts. `rewards_by_prompt`: at least one reward per prompt."""
    totals, sizes = [sum(rewards) for rewards in rewards_by_prompt], [len(rewards) for rewards in rewards_by_prompt]
    if is_binary(rewards_by_prompt):
        return share(totals, sizes, attempts=sum(sizes))
    mean, error = _ratio(totals, sizes)
    return Estimate(mean, error, None if error is None else _student_interval(mean, error, len(sizes) - 1))


def share(totals: Sequence[float], sizes: Sequence[float], *, attempts: int) -> Estimate:
    """Share of passed attempts, Σ totals / Σ sizes over prompts, each with total ≤ size. `attempts`: total number of attempts."""
    mean, error = _ratio(totals, sizes)
    if error is None:
        return Estimate(mean, None, None)
    effective = _effective_attempts(mean, error, totals, sizes, attempts)
    square = NORMAL_QUANTILE**2 / effective
    centre = (mean + square / 2) / (1 + square)
    half = NORMAL_QUANTILE * sqrt(mean * (1 - mean) / effective + square / (4 * effective)) / (1 + square)
    return Estimate(mean, error, (max(0.0, centre - half), min(1.0, centre + half)))


def paired_difference(first: Sequence[float], second: Sequence[float], *, resolution: float | None = None) -> Difference | None:
    """Mean of `second` minus `first`, both mean rewards by prompt; None without prompts.

    `resolution`: one attempt's contribution to a prompt's mean, for rewards of 0 and 1; None for other rewards. If it is given, the
    interval counts two more prompts, with the differences +`resolution` and −`resolution` (Bonett and Price, 2012, for one attempt). So
    the interval has a positive width even if no prompt differs.
    """
    differences = [after - before for before, after in zip(first, second, strict=True)]
    if not differences:
        return None
    count, mean = len(differences), fmean(differences)
    if count < MIN_PROMPTS:
        return Difference(mean, None, None, count)
    error = sqrt(_squares(value - mean for value in differences) / (count - 1) / count)
    if not isfinite(error):
        return Difference(mean, None, None, count)
    if resolution is None:
        return Difference(mean, error, _student_interval(mean, error, count - 1), count)
    centre = sum(differences) / (count + 2)
    spread = (_squares(differences) + 2 * resolution**2) / (count + 2) - centre**2
    low, high = _student_interval(centre, sqrt(spread / (count + 2)), count - 1)
    return Difference(mean, error, (max(-1.0, low), min(1.0, high)), count)


def _ratio(totals: Sequence[float], sizes: Sequence[float]) -> tuple[float, float | None]:
    """Σ totals / Σ sizes, and its standard error over clusters; error None for too few clusters, or on overflow."""
    count, size = len(totals), sum(sizes)
    mean = sum(totals) / size
    if count < MIN_PROMPTS:
        return mean, None
    residuals = _squares(total - mean * each for total, each in zip(totals, sizes, strict=True))
    error = sqrt(residuals * count / (count - 1)) / size
    return mean, error if isfinite(error) else None


def _squares(values: Iterable[float]) -> float:
    """Sum of squares; infinite on overflow, without an exception."""
    return sum(value * value for value in values)


def _effective_attempts(mean: float, error: float, totals: Sequence[float], sizes: Sequence[float], attempts: int) -> float:
    """Number of independent attempts with the same error, from the intraclass correlation of a prompt's attempts.

    The correlation is hardly known if only a few prompts have a passed attempt, or only a few have a failed one. It is then raised by a
    fraction of its distance to 1: the smaller number of prompts to the power of −1.5. This keeps the coverage of small shares
    (docs/evaluation.md).
    """
    count = len(totals)
    if attempts == count:
        return count
    correlation = 0.0
    each = attempts / count
    if 0 < mean < 1:
        correlation = (error**2 / (mean * (1 - mean)) * attempts - 1) / (each - 1)
    informative = min(sum(total > 0 for total in totals), sum(total < size for total, size in zip(totals, sizes, strict=True)))
    correlation += (1 - correlation) * max(1, informative) ** -1.5
    return attempts / max(1 + (each - 1) * correlation, MIN_DESIGN_EFFECT)


def _student_interval(mean: float, error: float, degrees: int) -> tuple[float, float]:
    half = student_quantile(degrees) * error
    return mean - half, mean + half


@cache
def student_quantile(degrees: int) -> float:
    """Half width of the 95 % interval in standard errors, by bisection of Student's distribution."""
    if degrees >= MAX_DEGREES:
        return NORMAL_QUANTILE
    low, high = NORMAL_QUANTILE, 13.0  # upper bound: 12.7 with one degree of freedom
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_share(middle, degrees) < CONFIDENCE else (low, middle)
    return low


def _student_share(quantile: float, degrees: int) -> float:
    """Probability that Student's t is within ±`quantile`, for whole degrees of freedom.   Source: Abramowitz and Stegun, 26.7.3 and
    26.7.4."""
    angle = atan(quantile / sqrt(degrees))
    square, odd = cos(angle) ** 2, degrees % 2
    term = cos(angle) if odd else 1.0
    total = term if degrees > 1 else 0.0
    for factor in range(2 + odd, degrees - 1, 2):
        term *= square * (factor - 1) / factor
        total += term
    return (angle + sin(angle) * total) * 2 / pi if odd else sin(angle) * total


Interval = tuple[float, float]


class Uncertainty(Value):
    """Uncertainty of a mean over prompts; fields are None if too few prompts were scored."""

    standard_error: float | None
    interval: Interval | None

    @classmethod
    def of(cls, estimate: Estimate) -> "Uncertainty":
        return Uncertainty(standard_error=estimate.standard_error, interval=estimate.interval)


class Gain(Value):
    """Paired difference to version 0, over the prompts at which both have scored attempts."""

    reward: float
    standard_error: float | None
    interval: Interval | None
    prompts: int

    @classmethod
    def of(cls, found: Difference) -> "Gain":
        return Gain(reward=found.mean, standard_error=found.standard_error, interval=found.interval, prompts=found.prompts)


class Asked(Value):
    """Parts of a task that must be equal for two results to concern the same prompts, rewards and sampling."""

    environment: str
    options: str
    """Digest of the environment's options."""
    weights: str
    """Digest of the weights of the reward's components."""
    seed: int
    temperature: float

    @classmethod
    def by(cls, spec: TaskSpec, protocol: Protocol) -> "Asked":
        environment = spec.environment_of(protocol)
        return Asked(
            environment=environment.name,
            options=_digest(environment.options),
            weights=_digest(environment.weights),
            seed=protocol.seed,
            temperature=protocol.temperature,
        )


class EvaluationReport(Value):
    """Result of evaluating one version by one protocol."""

    version: int
    protocol: str = MAIN_PROTOCOL
    decides_by: Literal["lower_bound", "mean"] | None = None
    """Statistic by which the task's versions are compared; None for protocols that do not decide."""
    reward: float | None
    """Mean over the scored attempts; None if every attempt failed."""
    standard_error: float | None = None
    interval: Interval | None = None
    pass_at: dict[str, float] = {}
    pass_at_1: Uncertainty | None = None
    gain: Gain | None = None
    """None for version 0, and while version 0 has no result."""
    best_version: int | None = None
    """With `stop.patience`: the version that a later one must improve on."""
    without_gain: int | None = None
    """With `stop.patience`: evaluations since `best_version`."""
    prompts: int = 0
    failed_share: float = 0.0
    failure: str = ""
    response_length: float | None = None
    truncated_share: float | None = None
    took_s: float = 0.0
    attempts: int = 1
    """Attempts requested at each prompt."""
    binary: bool = False
    """Whether every reward is 0 or 1."""
    asked: Asked
    by_prompt: str
    """Mean reward at each prompt, NaN if none was scored: little-endian float32, base64."""

    @classmethod
    def in_event(cls, event: Event) -> Self | None:
        """The report in an event; None for other events."""
        return from_json(cls, event.data) if event.event == "evaluation" else None

    def rewards_by_prompt(self) -> dict[int, float]:
        """Mean reward by prompt, without prompts that have no scored attempt."""
        return unpacked(self.by_prompt)


def packed(by_prompt: Mapping[int, float], prompts: int) -> str:
    """Base64 text of one float32 per prompt."""
    values = array("f", [by_prompt.get(prompt, nan) for prompt in range(prompts)])
    if byteorder == "big":
        values.byteswap()
    return b64encode(values.tobytes()).decode()


def unpacked(text: str) -> dict[int, float]:
    """Inverse of `packed`."""
    values = array("f")
    values.frombytes(b64decode(text))
    if byteorder == "big":
        values.byteswap()
    return {prompt: value for prompt, value in enumerate(values) if not isnan(value)}


def _digest(value: Mapping[str, JsonValue] | Mapping[str, float]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
