"""Coverage of evaluations' intervals, and prompts that a difference needs.

Draws evaluations with known means, and counts how often the 95 % interval of `common/evaluation.py` covers. A prompt's chance
of a reward of 1 is drawn from a beta distribution with the mean of all prompts; `correlation` is that of two attempts at one prompt (0:
all prompts are alike, 1: each always passes or always fails, as greedy attempts do). With one attempt a prompt the coverage is computed.
"""

from collections.abc import Callable, Sequence
from math import comb
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.evaluation import NORMAL_QUANTILE, mean_reward, paired_difference, share

POWER = 0.8
GAIN = 0.05

Floats = NDArray[np.float64]


class Pairs(NamedTuple):
    """Two versions: `changed` is the share of prompts whose chance the second draws a second time, so that the mean rises by `gain`."""

    prompts: int
    attempts: int
    mean: float
    correlation: float
    changed: float
    gain: float


def chances(random: np.random.Generator, mean: float, correlation: float, prompts: int) -> Floats:
    """Each prompt's chance of a reward of 1."""
    if correlation == 0:
        return np.full(prompts, mean)
    if correlation == 1:
        return (random.random(prompts) < mean).astype(float)
    size = 1 / correlation - 1
    return random.beta(mean * size, (1 - mean) * size, prompts)


def coverage(prompts: int, attempts: int, mean: float, correlation: float, runs: int) -> float:
    """Coverage of the interval of a mean of rewards 0 and 1."""
    if attempts == 1:
        chance = [comb(prompts, passed) * mean**passed * (1 - mean) ** (prompts - passed) for passed in range(prompts + 1)]
        return sum(chance[passed] for passed in range(prompts + 1) if _covers(mean, _passed(passed, prompts), 1))
    random = np.random.default_rng([prompts, attempts, round(1000 * mean), round(1000 * correlation)])
    drawn = (random.binomial(attempts, chances(random, mean, correlation, prompts)) for _ in range(runs))
    return fmean(_covers(mean, passed.tolist(), attempts) for passed in drawn)


def graded_coverage(prompts: int, attempts: int, mean: float, correlation: float, runs: int) -> float:
    """The same for rewards between 0 and 1: each attempt's is drawn around its prompt's mean."""
    random = np.random.default_rng([1, prompts, attempts, round(1000 * mean), round(1000 * correlation)])
    covered = 0
    for _ in range(runs):
        of_prompt = np.clip(chances(random, mean, correlation, prompts), 1e-3, 1 - 1e-3)[:, None]
        rewards = random.beta(4 * of_prompt, 4 * (1 - of_prompt), (prompts, attempts))
        interval = mean_reward(rewards.tolist()).interval
        covered += interval is not None and interval[0] <= mean <= interval[1]
    return covered / runs


def paired_coverage(pairs: Pairs, runs: int) -> float:
    """Coverage of the interval of the paired difference."""
    random = np.random.default_rng([2, *(round(1000 * value) for value in pairs)])
    covered = 0
    for _ in range(runs):
        first = chances(random, pairs.mean, pairs.correlation, pairs.prompts)
        redrawn = chances(random, pairs.mean + pairs.gain / pairs.changed, pairs.correlation, pairs.prompts)
        second = np.where(random.random(pairs.prompts) < pairs.changed, redrawn, first)
        rewards = [(random.binomial(pairs.attempts, chance) / pairs.attempts).tolist() for chance in (first, second)]
        found = paired_difference(*rewards, resolution=1 / pairs.attempts)
        covered += found is not None and found.interval is not None and found.interval[0] <= pairs.gain <= found.interval[1]
    return covered / runs


def prompts_needed(finds: Callable[[int], float], step: int) -> int:
    """Smallest multiple of `step` prompts with which `finds` a difference has the power wanted."""
    low, high = 0, step
    while finds(high) < POWER:
        low, high = high, 2 * high
    while high - low > step:
        middle = (low + high) // 2 // step * step
        low, high = (low, middle) if finds(middle) >= POWER else (middle, high)
    return high


def power_paired(prompts: int, differing: float, runs: int) -> float:
    """Share of runs in which the paired test finds a gain of GAIN in greedy rewards; `differing`: share of prompts whose rewards differ."""
    random = np.random.default_rng([3, prompts])
    counts = random.multinomial(prompts, [(differing + GAIN) / 2, (differing - GAIN) / 2, 1 - differing], runs)
    found = 0
    for better, worse, _ in counts.tolist():
        second = [1.0] * better + [-1.0] * worse + [0.0] * (prompts - better - worse)
        difference = paired_difference([0.0] * prompts, second, resolution=1.0)
        found += difference is not None and difference.interval is not None and difference.interval[0] > 0
    return found / runs


def power_unpaired(prompts: int, mean: float, runs: int) -> float:
    """The same where each version answers `prompts` of its own: the interval from both standard errors."""
    random = np.random.default_rng([4, prompts])
    passed = random.binomial(prompts, [mean, mean + GAIN], (runs, 2)).tolist()
    found = 0
    for before, after in passed:
        first, second = before / prompts, after / prompts
        error = ((first * (1 - first) + second * (1 - second)) / (prompts - 1)) ** 0.5
        found += second - first > NORMAL_QUANTILE * error
    return found / runs


def power(mean: float, differing: float, runs: int) -> dict[str, float]:
    """Prompts that both tests need for a gain of GAIN over `mean`, with the correlation of the two versions' rewards at one prompt."""
    spread = (mean * (1 - mean) * (mean + GAIN) * (1 - mean - GAIN)) ** 0.5
    correlation = (mean + (GAIN - differing) / 2 - mean * (mean + GAIN)) / spread
    paired = prompts_needed(lambda prompts: power_paired(prompts, differing, runs), 10)
    unpaired = prompts_needed(lambda prompts: power_unpaired(prompts, mean, runs), 10)
    shares = {"mean": mean, "gain": GAIN, "differing": differing, "correlation": round(correlation, 3)}
    return shares | {"paired_prompts": paired, "unpaired_prompts": unpaired, "ratio": round(paired / unpaired, 3)}


def _covers(mean: float, passed: Sequence[float], attempts: int) -> bool:
    """Whether the interval covers `mean`. `passed`: attempts that passed, by prompt."""
    interval = share(passed, [attempts] * len(passed), attempts=attempts * len(passed)).interval
    return interval is not None and interval[0] <= mean <= interval[1]


def _passed(count: int, prompts: int) -> list[float]:
    return [1.0] * count + [0.0] * (prompts - count)
