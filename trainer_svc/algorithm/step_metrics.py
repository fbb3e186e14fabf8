"""Metrics of a step, as flat floats. Pure; docs/algorithms.md documents the names."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.shaping import are_equal
from trainer_svc.batch import Group

MAX_COMPONENTS = 32
"""Maximum reward components reported, the first by name: an environment may define any number."""
RATIO_EDGES = (0.5, 0.8, 0.9, 0.97, 1.03, 1.1, 1.25, 2)


@dataclass(frozen=True, eq=False)
class TokenMeasurements:
    """Values of each sampled token in one update, as in `LossTerms`. Shapes: all (N,)."""

    log_ratio_N: NDArray[np.float64]
    clipped_N: NDArray[np.float64]
    masked_N: NDArray[np.float64]
    entropy_N: NDArray[np.float64]
    kl_base_N: NDArray[np.float64]
    staleness_N: NDArray[np.int16]


def sampler_mismatch(measured: Sequence[TokenMeasurements]) -> float | None:
    """Half the mean squared difference of the sampler's and trainer's log-probabilities, in nats, on tokens of staleness 0.

    For small differences it is the KL between the two, and an outlier token moves it by a square, not exponentially. Staler tokens are
    excluded, since there the policy itself has changed; None if all tokens are staler.
    """
    fresh = np.concatenate([update.log_ratio_N[update.staleness_N == 0] for update in measured])
    return float(np.square(fresh).mean() / 2) if len(fresh) else None


def token_metrics(measured: Sequence[TokenMeasurements]) -> dict[str, float]:
    """Metrics over tokens, from updates that saw each token of the step once; means unless the name says otherwise."""
    log_ratio_N = np.concatenate([update.log_ratio_N for update in measured])
    ratio_N = np.exp(log_ratio_N)
    mismatch = sampler_mismatch(measured)
    return {
        "ratio_mean": float(ratio_N.mean()),
        "ratio_p99": float(np.quantile(ratio_N, 0.99)),
        "ratio_max": float(ratio_N.max()),
        **{f"ratio.{edge:g}": float((ratio_N <= edge).mean()) for edge in RATIO_EDGES},
        "effective_sample_share": effective_sample_share(ratio_N),
        "kl_sampler": float((ratio_N - 1 - log_ratio_N).mean()),
        **({} if mismatch is None else {"sampler_mismatch": mismatch}),
        "masked_fraction": float(np.concatenate([update.masked_N for update in measured]).mean()),
        "entropy": float(np.concatenate([update.entropy_N for update in measured]).mean()),
        "tokens": float(len(ratio_N)),
    }


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """The finite metrics: JSON cannot represent others, and finite values may have an infinite mean or square."""
    return {name: value for name, value in metrics.items() if np.isfinite(value)}


def effective_sample_share(ratio_N: NDArray[np.float64]) -> float:
    """Effective sample share (Σρ)² / (N·Σρ²): 1 if all importance ratios are equal, 1/N if one outweighs the others.

    Source: Kish's effective sample size; Kong 1992.
    """
    return float(ratio_N.sum() ** 2 / (len(ratio_N) * np.square(ratio_N).sum()))


def batch_metrics(
    groups: Sequence[Group], shaped: Sequence[Sequence[float]], advantages: Sequence[NDArray[np.float64]]
) -> dict[str, float]:
    """Metrics of the trajectories as received. Rewards are the scored ones; only equality within groups is judged by the `shaped` ones."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    rewards = np.array([trajectory.reward for trajectory in trajectories])
    lengths = [trajectory.sampled_tokens for trajectory in trajectories]
    staleness = Counter(group.staleness for group in groups for _ in group.trajectories)
    return {
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        **_component_means(groups),
        "zero_variance_share": float(np.mean([are_equal(rewards) for rewards in shaped])),
        "advantage_std": float(np.concatenate(advantages).std()),
        "advantage_max": float(np.abs(np.concatenate(advantages)).max()),
        "response_length": float(np.mean(lengths)),
        "response_length_max": float(max(lengths)),
        "truncated_share": float(np.mean([trajectory.truncated for trajectory in trajectories])),
        "staleness_mean": sum(stale * count for stale, count in staleness.items()) / len(trajectories),
        "staleness_max": float(max(staleness)),
        **{f"staleness.{stale}": count / len(trajectories) for stale, count in sorted(staleness.items())},
        "trajectories": float(len(trajectories)),
    }


def _component_means(groups: Sequence[Group]) -> dict[str, float]:
    """Mean of each reward component over the trajectories in which it is finite."""
    found: dict[str, list[float]] = {}
    for group in groups:
        for trajectory in group.trajectories:
            for name, value in trajectory.components.items():
                if np.isfinite(value):
                    found.setdefault(name, []).append(value)
    return {f"reward.{name}": float(np.mean(found[name])) for name in sorted(found)[:MAX_COMPONENTS]}
