"""Reward shaping: rank within the group, and rules for attempts cut off by their token limit. Pure; all else is the environment's."""

from collections.abc import Sequence

from common.spec import TaskSpec
from trainer_svc.batch import Group, Trajectory


def shaped_rewards(group: Group, spec: TaskSpec) -> list[float]:
    """Rewards for advantages: as scored, plus the task's rank weights, minus its penalty for length."""
    rewards = [trajectory.reward for trajectory in group.trajectories]
    for name, weight in spec.environment.rank_weights.items():
        ranks = rank_shares([_component(trajectory, name) for trajectory in group.trajectories])
        rewards = [reward + weight * rank for reward, rank in zip(rewards, ranks, strict=True)]
    if spec.overlong.rule == "penalize":
        limit, rule = spec.reply_tokens, spec.overlong
        excess = [excess_length(trajectory.sampled_tokens, limit, rule.buffer_tokens) for trajectory in group.trajectories]
        rewards = [reward - rule.penalty * share for reward, share in zip(rewards, excess, strict=True)]
    return rewards


def rank_shares(values: Sequence[float]) -> list[float]:
    """Rank of each value as the share of smaller ones among the others, equal ones half: 0 for the minimum, 1 for the maximum.

    Raises: ZeroDivisionError for fewer than two values.
    """
    others = len(values) - 1
    return [(sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2) / others for value in values]


def _component(trajectory: Trajectory, name: str) -> float:
    """Value of a reward component; 0 where the attempt lacks it."""
    return trajectory.reward if name == "reward" else trajectory.components.get(name, 0.0)


def excess_length(sampled_tokens: int, limit: int, buffer_tokens: int) -> float:
    """Penalty's share: 0 until `buffer_tokens` before the limit, then linear to 1 at the limit.

    Source: soft overlong punishment, DAPO, arXiv 2503.14476, eq. 13.
    """
    return min(1.0, max(0.0, (sampled_tokens - (limit - buffer_tokens)) / buffer_tokens))


def counted_tokens(trajectory: Trajectory, spec: TaskSpec) -> int:
    """Sampled tokens in the loss: none of a cut-off attempt where the task masks those.

    Its reward still counts in its group's advantages.   Source: overlong filtering, DAPO, arXiv 2503.14476, section 3.4.
    """
    return 0 if trajectory.truncated and spec.overlong.rule == "mask" else trajectory.sampled_tokens
