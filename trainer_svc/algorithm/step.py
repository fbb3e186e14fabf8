"""One step of one task: advantages → minibatches → gradient → clip → AdamW. Takes the training state and returns the next.

A step is one update by default. With several passes or minibatches it is several, all on the same trajectories and with
the same start policy (`loss.py`). An update whose numbers are not finite is skipped: the optimizer's state is unchanged,
and the step still produces the next version. It is a generator that requests forward passes, so that steps of several tasks
can be computed together (`batched_steps.py`).
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from common.errors import Reject
from common.messages import Canary
from common.spec import Algorithm, Optimizer, TaskSpec
from trainer_svc.algorithm.advantage import counted_tokens, shaped_rewards, step_advantages
from trainer_svc.algorithm.batched_steps import ForwardRequest, ForwardResult, Gradient, Objective, Scoring, Step, run_steps
from trainer_svc.algorithm.loss import policy_loss, token_weights
from trainer_svc.algorithm.sample_selection import KeptAttempts, kept_attempts
from trainer_svc.algorithm.step_metrics import batch_metrics, sampler_mismatch, token_metrics
from trainer_svc.batch import Group
from trainer_svc.model.packing import Row, Sample, rows_of
from trainer_svc.model.policy import Adapted, Policy, canary_sample
from trainer_svc.state.optimizer import OptimizerState, Skips, adamw, clip, learning_rate
from trainer_svc.state.resident import Resident

ADVICE = "lower optimizer.learning_rate, and look for extreme rewards"


@dataclass(frozen=True, eq=False)
class StepResult:
    resident: Resident
    """State of the next version; the previous state is unchanged."""
    canary: Canary
    """Log-probabilities under the new adapter."""
    metrics: dict[str, float]
    trained_tokens: int
    """Prompt and reply tokens, each trajectory counted once in full, without padding."""
    skipped: tuple[str, ...] = ()
    """Description of each skipped update's non-finite numbers."""
    kept: KeptAttempts = field(default_factory=KeptAttempts)
    """Attempts to keep for inspection."""


@dataclass(frozen=True)
class Update:
    """One optimizer update: its forward result and its numbers."""

    result: ForwardResult
    gradient: Gradient
    loss: float
    grad_norm: float
    skipped: str | None
    """Description of non-finite numbers; None if the update was applied."""
    seconds: float
    """Seconds of the optimizer alone."""


def train_step(
    policy: Policy,
    resident: Resident,
    groups: Sequence[Group],
    spec: TaskSpec,
    *,
    budget_tokens: int,
    scoring: Scoring = nullcontext,
) -> StepResult:
    """Run `step` alone. Raises: as `step`."""
    alone = [step(policy, resident, groups, spec, budget_tokens=budget_tokens)]
    ((_, result),) = run_steps(policy, alone, budget_tokens=budget_tokens, scoring=scoring)
    if isinstance(result, Exception):
        raise result
    return result


def step(policy: Policy, resident: Resident, groups: Sequence[Group], spec: TaskSpec, *, budget_tokens: int) -> Step[StepResult]:
    """Step from `resident.version` to the next with exactly these groups, as a generator for `run_steps`.

    `budget_tokens` bounds a row. Raises: Reject, naming task, version and number, if too many steps had to skip an update
    (`optimizer.Skips`), if the new adapter's canary is not finite, or if sampler and trainer disagree beyond
    `correction.max_sampler_mismatch`.
    """
    where = f"task {resident.task}, step from version {resident.version}"
    shaped = [shaped_rewards(group, spec) for group in groups]
    advantages = step_advantages(shaped, spec.algorithm.advantage)
    dealt = weighted_samples(groups, advantages, spec)
    minibatches = [
        rows
        for samples in dealt
        if (rows := rows_of(samples, budget_tokens=budget_tokens, width=policy.width, shared=policy.shares_prefixes))
    ]
    if not minibatches:
        raise Reject(f"{where}: its trajectories hold no sampled token")
    objectives, score_s = list[Objective](), 0.0
    for rows in minibatches:
        objective, seconds = yield from _objective(rows, resident, spec)
        objectives.append(objective)
        score_s += seconds
    state, updates = resident.optimizer, list[Update]()
    for rows, objective in list(zip(minibatches, objectives, strict=True)) * spec.algorithm.passes:
        result = yield ForwardRequest(rows, Adapted(resident.layout, state.params, spec.sampling.temperature), objective)
        state, update = _updated(state, result, learning_rate(spec.optimizer, resident.version, spec.steps), spec.optimizer)
        updates.append(update)
    measured = [update.gradient.measured for update in updates[: len(minibatches)]]
    _require_agreement(where, sampler_mismatch(measured), spec.correction.max_sampler_mismatch)
    skipped = tuple(update.skipped for update in updates if update.skipped)
    skips = resident.skips.after(resident.version, len(skipped))
    _require_few_skips(where, skipped, skips)
    next_group = max(resident.next_group, *(group.group + 1 for group in groups))
    after = Resident(resident.task, resident.layout, state, resident.version + 1, next_group, resident.stored_at, skips)
    canary, seconds = yield from _canary(where, policy, after)
    score_s += seconds
    found = _metrics(updates, len(minibatches), resident.version, spec) | batch_metrics(groups, shaped, advantages)
    return StepResult(
        after,
        canary,
        metrics=found | {"score_s": score_s},
        trained_tokens=sum(len(trajectory.ids_T) for group in groups for trajectory in group.trajectories),
        skipped=skipped,
        kept=kept_attempts(groups, dealt, zip(minibatches, measured, strict=True), resident.version, spec),
    )


def weighted_samples(groups: Sequence[Group], advantages: Sequence[NDArray[np.float64]], spec: TaskSpec) -> list[list[list[Sample]]]:
    """Trajectories with their advantages and token weights, by minibatch and group.

    Groups are dealt round-robin, so sizes of minibatches differ by at most one group.
    """
    parts = spec.algorithm.minibatches
    dealt = [list(zip(groups[part::parts], advantages[part::parts], strict=True)) for part in range(parts)]
    return [_weighted(minibatch, spec) for minibatch in dealt]


def _weighted(minibatch: Sequence[tuple[Group, NDArray[np.float64]]], spec: TaskSpec) -> list[list[Sample]]:
    counts = [counted_tokens(trajectory, spec) for group, _ in minibatch for trajectory in group.trajectories]
    weights = iter(token_weights(counts, spec.algorithm.normalize, spec.reply_tokens))
    return [
        [
            Sample(t.ids_T, t.sampled_T, t.sampler_logprobs_T, float(advantage), next(weights), group.staleness)
            for t, advantage in zip(group.trajectories, advantages_G, strict=True)
        ]
        for group, advantages_G in minibatch
    ]


def scored_passes(algorithm: Algorithm) -> int:
    """Number of passes without a gradient over all of a step's tokens."""
    return _scores_start(algorithm) + (algorithm.kl_coefficient > 0)


def _scores_start(algorithm: Algorithm) -> bool:
    return algorithm.passes * algorithm.minibatches > 1


def _objective(rows: Sequence[Row], resident: Resident, spec: TaskSpec) -> Step[tuple[Objective, float]]:
    """A minibatch's objective, with log-probabilities of start and base model if the task needs them; and the seconds to compute these."""
    algorithm = spec.algorithm
    start = Adapted(resident.layout, resident.optimizer.params, spec.sampling.temperature)
    scored_start = (yield ForwardRequest(rows, start)) if _scores_start(algorithm) else None
    scored_base = (yield ForwardRequest(rows, start.base())) if algorithm.kl_coefficient > 0 else None
    objective = Objective(
        partial(policy_loss, algorithm=algorithm, correction=spec.correction),
        algorithm.entropy_coefficient > 0,
        scored_start.logprobs_N if scored_start else None,
        scored_base.logprobs_N if scored_base else None,
    )
    return objective, sum(one.seconds for one in (scored_start, scored_base) if one)


def _updated(state: OptimizerState, result: ForwardResult, rate: float, spec: Optimizer) -> tuple[OptimizerState, Update]:
    """State after the update, or the unchanged state if the update is skipped."""
    gradient, started_s = result.gradient, perf_counter()
    assert gradient is not None
    clipped, norm = clip(gradient.vector, spec.clip_norm)
    loss, grad_norm = gradient.loss.item(), norm.item()  # waits for the device
    skipped = _not_finite(loss=loss, gradient_norm=grad_norm)
    if skipped is None:
        after = adamw(state, clipped, spec, rate)
        params, moment = torch.stack([torch.linalg.vector_norm(after.params), after.exp_avg_sq.amax()]).tolist()
        skipped = _not_finite(parameter_norm=params, largest_second_moment=moment)
        state = state if skipped else after
    return state, Update(result, gradient, loss, grad_norm, skipped, perf_counter() - started_s)


def _canary(where: str, policy: Policy, after: Resident) -> Step[tuple[Canary, float]]:
    """Canary of the new adapter, and the seconds to compute it.

    Ids depend only on the vocabulary; log-probabilities are (T−1,) float32, of tokens 1…T−1. Raises: Reject if they are not finite.
    """
    sample = canary_sample(policy.vocabulary)
    result = yield ForwardRequest([Row(sample.input_tokens, (sample,))], Adapted(after.layout, after.optimizer.params))
    logprobs = result.logprobs_N.float().cpu().numpy()
    if problem := _not_finite(canary=float(logprobs.sum())):
        raise Reject(f"{where}: {problem}; {ADVICE}")
    return Canary(ids=sample.ids_T.tobytes(), logprobs=logprobs.astype("<f4").tobytes()), result.seconds


def _metrics(updates: Sequence[Update], minibatches: int, version: int, spec: TaskSpec) -> dict[str, float]:
    """Metrics of the updates. Metrics over tokens are of the first pass, which sees every token once, before learning from it."""
    first, last = updates[:minibatches], updates[-minibatches:]
    kl_base = {"kl_base": float(np.concatenate([update.gradient.measured.kl_base_N for update in last]).mean())}
    made = [update for update in updates if not update.skipped]
    means = {"loss": [update.loss for update in made], "grad_norm": [update.grad_norm for update in made]}
    return {
        **{name: float(np.mean(values)) for name, values in means.items() if values},
        "learning_rate": learning_rate(spec.optimizer, version, spec.steps),
        "updates": float(len(updates)),
        "skipped_updates": float(len(updates) - len(made)),
        "clip_fraction": float(np.concatenate([update.gradient.measured.clipped_N for update in updates]).mean()),
        **token_metrics([update.gradient.measured for update in first]),
        **(kl_base if spec.algorithm.kl_coefficient else {}),
        "micro_batches": float(sum(update.result.micro_batches for update in first)),
        "computed_tokens": float(sum(update.result.computed_tokens for update in first)),
        "together": float(max(update.result.tasks for update in updates)),
        "forward_backward_s": sum(update.result.seconds for update in updates),
        "optimizer_s": sum(update.seconds for update in updates),
    }


def _not_finite(**numbers: float) -> str | None:
    """Description of the numbers that are not finite; None if all are finite."""
    found = [f"{name.replace('_', ' ')} is {value}" for name, value in numbers.items() if not np.isfinite(value)]
    return " and ".join(found) or None


def _require_few_skips(where: str, skipped: Sequence[str], skips: Skips) -> None:
    if skipped and (objection := skips.objection()):
        raise Reject(f"{where}: {'; '.join(dict.fromkeys(skipped))}; {objection}; {ADVICE}")


def _require_agreement(where: str, mismatch: float | None, bound: float) -> None:
    if mismatch is not None and mismatch > bound:
        raise Reject(
            f"{where}: sampler and trainer disagree about tokens of this very version: mismatch {mismatch:.3g} nats, but "
            f"correction.max_sampler_mismatch is {bound:g}; the sampler does not serve the trained weights, or samples by other rules"
        )
