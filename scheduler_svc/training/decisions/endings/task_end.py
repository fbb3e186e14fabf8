"""Why a task ends before its last step: a budget is used up, a target is reached, or too many of its groups failed. Pure."""

from dataclasses import dataclass

from common.spec import TaskSpec

MIN_FAILURES_TO_FAIL = 8
"""Minimum failed groups, in a row or among the latest, before they fail a task."""
MAX_UNSUPPORTED_SHARE = 0.5
"""Maximum share of a task's latest groups with an attempt that the deployment cannot grade; above it most sampling is wasted."""


@dataclass(frozen=True)
class Failures:
    """Failures among a task's latest groups."""

    failed: int
    ended: int
    """Groups that were scored or failed; not those in flight, or void for another reason."""
    unsupported: int = 0
    """Failed groups with an attempt that the deployment cannot grade."""

    @property
    def share(self) -> float:
        return self.failed / self.ended if self.ended else 0.0


@dataclass(frozen=True)
class Evaluated:
    """Result of `version` by the protocol that decides."""

    version: int
    reward: float | None
    lower_bound: float | None
    """Lower bound of the reward's interval."""
    best_version: int | None = None
    """With `stop.patience`: the version that others must gain over."""
    without_gain: int | None = None
    """With `stop.patience`: evaluations since that one."""


def reason_to_finish(
    spec: TaskSpec, version: int, *, tokens: int = 0, seconds: float = 0.0, evaluated: Evaluated | None = None
) -> str | None:
    """Target reached, or budget used up, at `version`; None when the task continues.

    `tokens`: recorded in the ledger; `seconds`: since the task was accepted.
    """
    stop = spec.stop
    if evaluated is not None and stop.reward is not None and (reached := _reached(spec, evaluated, stop.reward)):
        return f"stop.reward: version {evaluated.version} was evaluated at {reached}, the target is {stop.reward:g}"
    if version >= spec.steps:  # it finishes by itself
        return None
    if evaluated is not None and stop.patience is not None and (evaluated.without_gain or 0) >= stop.patience:
        return f"stop.patience: {evaluated.without_gain} evaluations in a row showed no gain over version {evaluated.best_version}"
    if stop.tokens is not None and tokens >= stop.tokens:
        return f"stop.tokens: {tokens} tokens are spent, the budget is {stop.tokens}"
    if stop.seconds is not None and seconds >= stop.seconds:
        return f"stop.seconds: {seconds:.0f} s since the task was accepted, the budget is {stop.seconds:g} s"
    return None


def _reached(spec: TaskSpec, evaluated: Evaluated, target: float) -> str:
    """The result, where it reaches the target; else empty."""
    by_mean = spec.evaluation.decide_by == "mean"
    value = evaluated.reward if by_mean else evaluated.lower_bound
    if value is None or value < target:
        return ""
    return f"{evaluated.reward:.4g}" + ("" if by_mean else f" with a lower bound of {value:.4g}")


def reason_to_fail(spec: TaskSpec, in_a_row: int, latest: Failures) -> str | None:
    """Failure limit that the task has reached; None when it continues. `in_a_row`: groups that failed since one succeeded."""
    if in_a_row >= max(MIN_FAILURES_TO_FAIL, spec.algorithm.groups_per_step):
        return f"{in_a_row} groups in a row failed"
    if latest.unsupported >= MIN_FAILURES_TO_FAIL and latest.unsupported > MAX_UNSUPPORTED_SHARE * latest.ended:
        return f"{latest.unsupported} of the latest {latest.ended} groups had attempts that cannot be graded here"
    limit = spec.limits.max_failed_share
    if latest.failed >= MIN_FAILURES_TO_FAIL and latest.share > limit:
        return f"{latest.failed} of the latest {latest.ended} groups failed (limits.max_failed_share is {limit:g})"
    return None
