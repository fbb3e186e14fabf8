"""What becomes of attempts that are cut off by their token limit. Pure; everything else about rewards is the environment's."""

from common.spec import TaskSpec
from trainer_svc.batch import Group, Trajectory


def shaped_rewards(group: Group, spec: TaskSpec) -> list[float]:
    """The rewards that advantages are made of: as scored, less a penalty for length where the task asks for one."""
    if spec.overlong.rule != "penalize":
        return [trajectory.reward for trajectory in group.trajectories]
    limit, rule = spec.reply_tokens, spec.overlong
    return [
        trajectory.reward - rule.penalty * excess_length(trajectory.sampled_tokens, limit, rule.buffer_tokens)
        for trajectory in group.trajectories
    ]


def excess_length(sampled_tokens: int, limit: int, buffer_tokens: int) -> float:
    """0 until `buffer_tokens` before the limit, then rising linearly to 1 at the limit.

    Source: soft overlong punishment, DAPO, arXiv 2503.14476, eq. 13.
    """
    return min(1.0, max(0.0, (sampled_tokens - (limit - buffer_tokens)) / buffer_tokens))


def counted_tokens(trajectory: Trajectory, spec: TaskSpec) -> int:
    """Sampled tokens with a part in the loss: none of a cut-off attempt where the task masks those.

    Its reward still counts in its group's advantages.   Source: overlong filtering, DAPO, arXiv 2503.14476, section 3.4.
    """
    return 0 if trajectory.truncated and spec.overlong.rule == "mask" else trajectory.sampled_tokens
