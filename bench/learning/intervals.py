"""Means over seeds and prompts with 95 % intervals, and pass@k. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler_svc.training.decisions.evaluation import pass_at_k

RESAMPLES = 10_000
TAILS = (2.5, 97.5)
BOOTSTRAP_SEED = 0


@dataclass(frozen=True)
class Estimate:
    mean: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        return {"mean": round(self.mean, 4), "low": round(self.low, 4), "high": round(self.high, 4)}


def over_seeds_and_prompts(values_S_P: NDArray[np.float64]) -> Estimate:
    """Mean with a bootstrap interval that resamples seeds, and the prompts that all seeds share.

    Shapes: values_S_P (S, P). With one seed only prompts are resampled, and the interval says nothing of other seeds.
    """
    seeds, prompts = values_S_P.shape
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    seeds_R_S = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=RESAMPLES) / seeds
    prompts_R_P = rng.multinomial(prompts, np.full(prompts, 1 / prompts), size=RESAMPLES) / prompts
    means = ((seeds_R_S @ values_S_P) * prompts_R_P).sum(1)
    low, high = np.percentile(means, TAILS)
    return Estimate(float(values_S_P.mean()), float(low), float(high))


def pass_at(passed_P: Sequence[int], attempts: int) -> dict[str, float]:
    """k → probability that one of k attempts is right, mean over prompts, for k = 1, 2, 4, … up to `attempts`."""
    powers = [1 << power for power in range(attempts.bit_length()) if 1 << power <= attempts]
    return {str(k): round(float(np.mean([pass_at_k(attempts, passed, k) for passed in passed_P])), 4) for k in powers}
