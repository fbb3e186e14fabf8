"""Reward shaping of a group's trajectories (`common/shaping.py`), and the tokens that count of an attempt that was cut off. Pure."""

from common import shaping
from common.spec import TaskSpec
from trainer_svc.batch import Group, Trajectory


def shaped_rewards(group: Group, spec: TaskSpec) -> list[float]:
    """Rewards for advantages: as scored, plus the task's rank weights, minus its penalty for length."""
    return shaping.shaped_rewards([trajectory.attempt for trajectory in group.trajectories], spec)


def counted_tokens(trajectory: Trajectory, spec: TaskSpec) -> int:
    """Sampled tokens in the loss: none of a cut-off attempt where the task masks those.

    Its reward still counts in its group's advantages.   Source: overlong filtering, DAPO, arXiv 2503.14476, section 3.4.
    """
    return 0 if trajectory.truncated and spec.overlong.rule == "mask" else trajectory.sampled_tokens
