"""Rewards of a group, shaped (`common/shaping.py`), and advantages: rewards relative to the group or the step. Pure.

An estimator that allows groups of one attempt is also named in `batch.py` and in the validator of `Algorithm`.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from common import shaping
from common.errors import Reject
from common.spec import TaskSpec
from trainer_svc.batch import Group, Trajectory

Floats = NDArray[np.float64]

GRPO_EPS = 1e-4
"""Epsilon added to a group's standard deviation, as in TRL."""
BATCH_EPS = 1e-8
"""Epsilon added to the standard deviation of a whole step."""


def grpo(rewards_G: Floats) -> Floats:
    """Advantages centred on the group's mean, divided by its sample standard deviation (G − 1 in the denominator).

    Source: GRPO, arXiv 2402.03300, section 4.1.
    """
    return dr_grpo(rewards_G) / (rewards_G.std(ddof=1) + GRPO_EPS)


def dr_grpo(rewards_G: Floats) -> Floats:
    """Advantages centred on the group's mean: prompts with a small spread count less. Source: Dr. GRPO, arXiv 2503.20783."""
    return rewards_G - rewards_G.mean()


def rloo(rewards_G: Floats) -> Floats:
    """Reward minus the mean of the other members. Source: RLOO, arXiv 2402.14740."""
    members = len(rewards_G)
    return (rewards_G - rewards_G.mean()) * members / (members - 1)


def maxrl(rewards_G: Floats) -> Floats:
    """Advantages centred on the group's mean and divided by it, so that rarer successes count more, as in maximum likelihood.

    Raises: Reject if a reward is negative, since the division could flip signs.   Source: MaxRL, arXiv 2602.02710, algorithm 1.
    """
    if rewards_G.min() < 0:
        raise Reject(f"algorithm.advantage 'maxrl' needs rewards of 0 or more, found {rewards_G.min():g}; 'dr_grpo' takes any")
    return dr_grpo(rewards_G) / rewards_G.mean()


def reinforce_pp(groups: Sequence[Floats]) -> list[Floats]:
    """Rewards standardized over the whole step, regardless of groups, which may be single attempts.

    The standard deviation is the population's (no − 1).   Source: REINFORCE++, arXiv 2501.03262.
    """
    rewards = np.concatenate(groups)
    if rewards.min() == rewards.max():
        return [np.zeros_like(rewards_G) for rewards_G in groups]
    return [(rewards_G - rewards.mean()) / (rewards.std() + BATCH_EPS) for rewards_G in groups]


def reinforce_pp_baseline(groups: Sequence[Floats]) -> list[Floats]:
    """Rewards centred on each group's mean, then divided by the standard deviation over the whole step.

    Source: REINFORCE++ with baseline, arXiv 2501.03262.
    """
    centred = [_centred(rewards_G) for rewards_G in groups]
    return [advantages_G / (np.concatenate(centred).std() + BATCH_EPS) for advantages_G in centred]


WITHIN_GROUP: dict[str, Callable[[Floats], Floats]] = {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo, "maxrl": maxrl}
WITHIN_STEP: dict[str, Callable[[Sequence[Floats]], list[Floats]]] = {
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
}


def step_advantages(groups: Sequence[Sequence[float]], kind: str) -> list[Floats]:
    """Advantages of a step's attempts, group by group; `kind` is the task's `algorithm.advantage`.

    Shapes: each group (G,) → (G,) float64.
    Raises: ValueError as `group_advantages`; Reject if the rule does not accept these rewards.
    """
    if kind in WITHIN_STEP:
        return WITHIN_STEP[kind]([_finite(rewards) for rewards in groups])
    return [group_advantages(rewards, kind) for rewards in groups]


def group_advantages(rewards: Sequence[float], kind: str) -> Floats:
    """Advantages within one group, by a rule in `WITHIN_GROUP`.

    Shapes: rewards (G,) → (G,) float64. Equal rewards give exact zeros, regardless of rounding in their mean.
    Raises: ValueError if G < 2 or a reward is not finite.
    """
    rewards_G = _finite(rewards)
    if len(rewards_G) < 2:
        raise ValueError(f"advantages compare the members of a group: got {len(rewards_G)}, at least 2 are needed")
    if rewards_G.min() == rewards_G.max():
        return np.zeros_like(rewards_G)
    return WITHIN_GROUP[kind](rewards_G)


def _finite(rewards: Sequence[float]) -> Floats:
    rewards_G = np.asarray(rewards, np.float64)
    if not np.isfinite(rewards_G).all():
        raise ValueError(f"rewards are not all finite: {rewards}")
    return rewards_G


def _centred(rewards_G: Floats) -> Floats:
    return np.zeros_like(rewards_G) if rewards_G.min() == rewards_G.max() else dr_grpo(rewards_G)


def shaped_rewards(group: Group, spec: TaskSpec) -> list[float]:
    """Rewards for advantages: scored rewards plus the task's rank weights, minus its length penalty."""
    return shaping.shaped_rewards([trajectory.attempt for trajectory in group.trajectories], spec)


def counted_tokens(trajectory: Trajectory, spec: TaskSpec) -> int:
    """Number of sampled tokens in the loss: 0 for a truncated attempt if the task masks those.

    The attempt's reward still counts in its group's advantages.   Source: overlong filtering, DAPO, arXiv 2503.14476, section 3.4.
    """
    return 0 if trajectory.truncated and spec.overlong.rule == "mask" else trajectory.sampled_tokens
