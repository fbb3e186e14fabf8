"""Early ends of tasks, and warnings: signs that a task runs and learns nothing, or makes no progress. Pure.

Each warning's threshold is far outside the range seen in tasks that learn, because users ignore warnings that are mostly wrong. A warning
changes nothing about its task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from common.spec import TaskSpec

MIN_FAILURES_TO_FAIL = 8
"""Minimum failed groups, consecutive or among the latest, before a task fails."""
MAX_UNSUPPORTED_SHARE = 0.5
"""Maximum share of a task's latest groups that may have an ungradable attempt; above it most sampling is wasted."""


@dataclass(frozen=True)
class Failures:
    """Failures among a task's latest groups."""

    failed: int
    ended: int
    """Groups that were scored or failed; excludes groups in flight and groups void for another reason."""
    unsupported: int = 0
    """Failed groups with an attempt that the deployment cannot grade."""

    @property
    def share(self) -> float:
        return self.failed / self.ended if self.ended else 0.0


@dataclass(frozen=True)
class Evaluated:
    """Result of `version` by the deciding protocol."""

    version: int
    reward: float | None
    lower_bound: float | None
    """Lower bound of the confidence interval of `reward`."""
    best_version: int | None = None
    """With `stop.patience`: best version so far; later versions must show a gain over it."""
    without_gain: int | None = None
    """With `stop.patience`: evaluations since `best_version` without a gain."""


def reason_to_finish(
    spec: TaskSpec, version: int, *, tokens: int = 0, seconds: float = 0.0, evaluated: Evaluated | None = None
) -> str | None:
    """Reason to finish the task at `version` (target reached or budget used up); None if the task continues.

    `tokens`: recorded in the ledger; `seconds`: since the task was accepted.
    """
    stop = spec.stop
    if evaluated is not None and stop.reward is not None and (reached := _reached(spec, evaluated, stop.reward)):
        return f"stop.reward: version {evaluated.version} was evaluated at {reached}, the target is {stop.reward:g}"
    if version >= spec.steps:  # the last step ends the task without a reason
        return None
    if evaluated is not None and stop.patience is not None and (evaluated.without_gain or 0) >= stop.patience:
        return f"stop.patience: {evaluated.without_gain} evaluations in a row showed no gain over version {evaluated.best_version}"
    if stop.tokens is not None and tokens >= stop.tokens:
        return f"stop.tokens: {tokens} tokens are spent, the budget is {stop.tokens}"
    if stop.seconds is not None and seconds >= stop.seconds:
        return f"stop.seconds: {seconds:.0f} s since the task was accepted, the budget is {stop.seconds:g} s"
    return None


def _reached(spec: TaskSpec, evaluated: Evaluated, target: float) -> str:
    """The evaluated result as text if it reaches the target; else empty."""
    by_mean = spec.evaluation.decide_by == "mean"
    value = evaluated.reward if by_mean else evaluated.lower_bound
    if value is None or value < target:
        return ""
    return f"{evaluated.reward:.4g}" + ("" if by_mean else f" with a lower bound of {value:.4g}")


def reason_to_fail(spec: TaskSpec, in_a_row: int, latest: Failures) -> str | None:
    """Failure limit that the task has reached; None if the task continues. `in_a_row`: groups that failed since the last success."""
    if in_a_row >= max(MIN_FAILURES_TO_FAIL, spec.algorithm.groups_per_step):
        return f"{in_a_row} groups in a row failed"
    if latest.unsupported >= MIN_FAILURES_TO_FAIL and latest.unsupported > MAX_UNSUPPORTED_SHARE * latest.ended:
        return f"{latest.unsupported} of the latest {latest.ended} groups had attempts that cannot be graded here"
    limit = spec.limits.max_failed_share
    if latest.failed >= MIN_FAILURES_TO_FAIL and latest.share > limit:
        return f"{latest.failed} of the latest {latest.ended} groups failed (limits.max_failed_share is {limit:g})"
    return None


WINDOW = 3
"""Number of steps that must all show a sign, and of initial steps that are the baseline: a single unusual batch is no sign.
For skipped updates a single step suffices."""
ENTROPY_SHARE = 0.05
"""Fraction of a policy's initial entropy below which it has collapsed; a task that learns well keeps a tenth or more."""
MISMATCH_GROWTH = 10.0
"""Multiple of the initial sampler mismatch that triggers a warning; in one precision the mismatch varies two- to threefold between steps.
"""
MISMATCH_NATS = 1e-3
"""Minimum sampler mismatch, in nats, for a warning; bfloat16 against float32 gives about a tenth of it."""
NO_PROGRESS_S = 900.0
"""Seconds without a scored attempt or a step before a warning: longer than a ten-minute step and than any redelivery."""


class TaskWarning(StrEnum):
    """Names of warnings in events, in status and in `tasks.warnings`."""

    TRUNCATED = "truncated"
    EQUAL_REWARDS = "equal_rewards"
    ENTROPY_COLLAPSED = "entropy_collapsed"
    MISMATCH_GROWING = "mismatch_growing"
    UPDATES_SKIPPED = "updates_skipped"
    NO_PROGRESS = "no_progress"
    PARKED = "parked"


@dataclass(frozen=True)
class StepMetrics:
    """Metrics of a trained step from which warnings are derived; None if the trainer did not measure one."""

    truncated_share: float | None = None
    zero_variance_share: float | None = None
    entropy: float | None = None
    sampler_mismatch: float | None = None
    skipped_updates: float | None = None


@dataclass(frozen=True)
class Stall:
    """A task without progress for `seconds`, and the state on which its progress depends."""

    seconds: float
    is_accepted: bool
    """Whether the task is accepted: its environment has been checked."""
    pool: str
    environment: str
    family: str | None
    open_groups: int
    is_training: bool
    is_evaluating: bool
    parked_s: float | None = None
    """Wall-clock seconds without progress, if the pool is parked and not yet past `NO_PROGRESS_S` on its own clock; None otherwise."""


def warnings_of_steps(first: Sequence[StepMetrics], latest: Sequence[StepMetrics]) -> dict[TaskWarning, str]:
    """Warnings that the metrics of a task's steps give, each with a sentence that ends with a remedy.

    `first`: the task's first `WINDOW` steps, `latest`: its last `WINDOW` steps, both in order.
    """
    found: dict[TaskWarning, str] = {}
    if skipping := sum(bool(step.skipped_updates) for step in latest):
        found[TaskWarning.UPDATES_SKIPPED] = (
            f"{skipping} of the last {len(latest)} steps skipped an update whose numbers were not finite, and the fourth in a row fails "
            "the task; lower the learning rate, and look for extreme rewards"
        )
    if len(latest) < WINDOW:
        return found
    if all(step.truncated_share == 1.0 for step in latest):
        found[TaskWarning.TRUNCATED] = f"all attempts of the last {WINDOW} steps ended at their limit of tokens; raise sampling.max_tokens"
    if all(step.zero_variance_share == 1.0 for step in latest):
        found[TaskWarning.EQUAL_REWARDS] = (
            f"in the last {WINDOW} steps all attempts of each group earned the same, so they have nothing to learn from each other; "
            "the environment is too easy or too hard, or its reward does not distinguish attempts"
        )
    if len(first) < WINDOW or first == latest:
        return found
    before, now = _mean([step.entropy for step in first]), _mean([step.entropy for step in latest])
    if before and now is not None and now < ENTROPY_SHARE * before:
        found[TaskWarning.ENTROPY_COLLAPSED] = (
            f"the entropy fell from {before:.3g} to {now:.3g} nats a token, so attempts hardly differ; "
            "raise algorithm.entropy_coefficient, or lower the learning rate"
        )
    before, now = _mean([step.sampler_mismatch for step in first]), _mean([step.sampler_mismatch for step in latest])
    if before is not None and now is not None and now > max(MISMATCH_NATS, MISMATCH_GROWTH * before):
        found[TaskWarning.MISMATCH_GROWING] = (
            f"sampler and trainer disagree by {now:.2g} nats, {before:.2g} at the beginning; "
            "lower the learning rate, or bound the ratio with correction.mask_low and mask_high"
        )
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    """Mean; None if a value is missing, since a mean over the rest would compare different steps."""
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def no_progress(stall: Stall, alive: Mapping[str, int]) -> str:
    """Text of the no-progress warning. `alive`: live replicas by service, of the task's pool or environment."""
    return f"no attempt was scored and no step taken for {stall.seconds / 60:.0f} min; waits for {_waits_for(stall, alive)}"


def parked(pool: str, parked_s: float, wakes_in_s: float | None) -> str:
    """Text of the parked warning. `wakes_in_s`: expected seconds until the pool's sampler wakes; None if none wakes by itself."""
    expected = "" if wakes_in_s is None else f", about {wakes_in_s:.0f} s"
    return (
        f"no attempt was scored and no step taken for {parked_s / 60:.0f} min; pool '{pool}' waits for its accelerator{expected}. "
        "`marlaas why` says for what, `marlaas pools` who computes"
    )


def _waits_for(stall: Stall, alive: Mapping[str, int]) -> str:
    if not stall.is_accepted:
        if stall.family is None:
            return f"an environment replica that serves '{stall.environment}'"
        return f"the check of environment '{stall.environment}'{_by(alive, 'env')}"
    if stall.is_training:
        return f"the trainer{_by(alive, 'trainer')}"
    if stall.open_groups:
        return f"{stall.open_groups} open groups: sampling{_by(alive, 'rollout')}, or the environment{_by(alive, 'env')}"
    if stall.is_evaluating:
        return f"an evaluation: sampling{_by(alive, 'rollout')}, or the environment{_by(alive, 'env')}"
    return f"room in pool '{stall.pool}'{_by(alive, 'rollout')}"


def _by(alive: Mapping[str, int], service: str) -> str:
    count = alive.get(service, 0)
    return f" ({count or 'no'} {service} replica{'' if count == 1 else 's'} alive)"
