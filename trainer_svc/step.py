"""One step of one task: advantages → minibatches → gradient → clip → AdamW. The state goes in and comes out.

A step is one update by default. With several passes or minibatches it is several, all on the same trajectories, and what
went in stays the policy at the start of the step (`loss.py`).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.errors import Reject
from common.spec import TaskSpec
from trainer_svc.advantage import step_advantages
from trainer_svc.batch import Group
from trainer_svc.lora import Layout
from trainer_svc.loss import LossTerms, Tokens, policy_loss, token_weights
from trainer_svc.metrics import Measured, batch_metrics, sampler_mismatch, token_metrics
from trainer_svc.optimizer import adamw, clip, learning_rate
from trainer_svc.packing import Packed, Sample, pack
from trainer_svc.policy import Policy, TokenScores
from trainer_svc.resident import Resident
from trainer_svc.shaping import counted_tokens, shaped_rewards


@dataclass(frozen=True, eq=False)
class StepResult:
    resident: Resident
    """The next version; the one that went in is as it was."""
    metrics: dict[str, float]
    trained_tokens: int
    """Prompts and replies, each trajectory by itself and once, padding not counted."""


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """What is computed at once, with what other policies say of its tokens. Shapes: (N,); None as in `Tokens`."""

    packed: Packed
    start_logprobs_N: Tensor | None = None
    base_logprobs_N: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Gradient:
    """Of one update. Shapes: `vector` (P,); `loss` scalar."""

    vector: Tensor
    loss: Tensor
    measured: Measured


@dataclass(frozen=True)
class Update:
    """What one update did to the state."""

    loss: float
    grad_norm: float
    measured: Measured


def train_step(policy: Policy, resident: Resident, groups: Sequence[Group], spec: TaskSpec, *, budget_tokens: int) -> StepResult:
    """The step from `resident.version` to the next, with exactly these groups.

    Raises: Reject, naming task, version and number, when loss, gradient or new parameters are not finite, or when the
    sampler's log-probabilities are not those of the policy that it claims to have sampled.
    """
    where = f"task {resident.task}, step from version {resident.version}"
    started_s = time.perf_counter()
    advantages = step_advantages([shaped_rewards(group, spec) for group in groups], spec.algorithm.advantage)
    minibatches = [
        pack(samples, budget_tokens=budget_tokens, width=policy.width, shared=policy.shares_prefixes)
        for samples in weighted_samples(groups, advantages, spec)
    ]
    if not any(minibatches):
        raise Reject(f"{where}: its trajectories hold no sampled token")
    state, updates, optimizer_s = resident.optimizer, [], 0.0
    work = [[micro_batch(policy, resident, packed, spec) for packed in minibatch] for minibatch in minibatches if minibatch]
    for minibatch in work * spec.algorithm.passes:
        gradient = step_gradient(policy, resident.layout, state.params, minibatch, spec)
        clipped, norm = clip(gradient.vector, spec.optimizer.clip_norm)
        updates.append(Update(gradient.loss.item(), norm.item(), gradient.measured))  # waits for the device
        updated_s = time.perf_counter()
        _require_finite(where, loss=updates[-1].loss, gradient_norm=updates[-1].grad_norm)
        state = adamw(state, clipped, spec.optimizer, learning_rate(spec.optimizer, resident.version, spec.steps))
        _require_finite(where, parameter_norm=torch.linalg.vector_norm(state.params).item())
        optimizer_s += time.perf_counter() - updated_s
    first_pass = [update.measured for update in updates[: len(work)]]
    _require_agreement(where, sampler_mismatch(first_pass), spec.correction.max_sampler_mismatch)
    computed_tokens = sum(packed.ids_B_T.size for minibatch in minibatches for packed in minibatch)
    metrics = {
        "loss": float(np.mean([update.loss for update in updates])),
        "grad_norm": float(np.mean([update.grad_norm for update in updates])),
        "learning_rate": learning_rate(spec.optimizer, resident.version, spec.steps),
        "updates": float(len(updates)),
        "clip_fraction": float(np.concatenate([update.measured.clipped_N for update in updates]).mean()),
        **token_metrics(first_pass),
        **({"kl_base": _last_kl(updates, len(work))} if spec.algorithm.kl_coefficient else {}),
        "micro_batches": float(sum(map(len, minibatches))),
        "computed_tokens": float(computed_tokens),
        **batch_metrics(groups, advantages),
        "forward_backward_s": time.perf_counter() - started_s - optimizer_s,
        "optimizer_s": optimizer_s,
    }
    trained_tokens = sum(len(trajectory.ids_T) for group in groups for trajectory in group.trajectories)
    next_group = max(resident.next_group, *(group.group + 1 for group in groups))
    return StepResult(Resident(resident.task, resident.layout, state, resident.version + 1, next_group), metrics, trained_tokens)


def weighted_samples(groups: Sequence[Group], advantages: Sequence[NDArray[np.float64]], spec: TaskSpec) -> list[list[list[Sample]]]:
    """For each minibatch, for each of its groups: every trajectory with its advantage, and the weight of its tokens in
    the whole minibatch. Groups are dealt out in turn, so minibatches differ in size by one group at most."""
    parts = spec.algorithm.minibatches
    dealt = [list(zip(groups[part::parts], advantages[part::parts], strict=True)) for part in range(parts)]
    return [_weighted(minibatch, spec) for minibatch in dealt]


def _weighted(minibatch: Sequence[tuple[Group, NDArray[np.float64]]], spec: TaskSpec) -> list[list[Sample]]:
    counts = [counted_tokens(trajectory, spec) for group, _ in minibatch for trajectory in group.trajectories]
    weights = iter(token_weights(counts, spec.algorithm.normalize, spec.sampling.max_tokens))
    return [
        [
            Sample(t.ids_T, t.sampled_T, t.sampler_logprobs_T, float(advantage), next(weights), group.staleness)
            for t, advantage in zip(group.trajectories, advantages_G, strict=True)
        ]
        for group, advantages_G in minibatch
    ]


def micro_batch(policy: Policy, resident: Resident, packed: Packed, spec: TaskSpec) -> MicroBatch:
    """With the log-probabilities that stay the same for the whole step, where the task needs them."""
    algorithm = spec.algorithm
    start_logprobs_N = None
    if algorithm.passes * algorithm.minibatches > 1:
        with torch.no_grad():
            start_logprobs_N = policy.scores(packed, resident.layout, resident.optimizer.params, spec.sampling.temperature).logprobs_N
    base_logprobs_N = policy.base_logprobs(packed, spec.sampling.temperature) if algorithm.kl_coefficient else None
    return MicroBatch(packed, start_logprobs_N, base_logprobs_N)


def step_gradient(policy: Policy, layout: Layout, params: Tensor, micro_batches: Sequence[MicroBatch], spec: TaskSpec) -> Gradient:
    """The gradient of one update's loss, summed over its micro-batches; weights are the update's, so the split does not matter."""
    params = params.detach().clone().requires_grad_()
    loss, measured = torch.zeros((), device=policy.device), []
    for work in micro_batches:
        scores = policy.scores(
            work.packed, layout, params, spec.sampling.temperature, entropy_gradient=spec.algorithm.entropy_coefficient > 0
        )
        terms = policy_loss(_tokens(policy, work, scores), spec.algorithm, spec.correction)
        torch.autograd.backward(terms.loss)
        loss += terms.loss.detach()
        measured.append(_per_token(terms, scores))
    assert params.grad is not None
    rows: list[NDArray[np.float64]] = list(torch.cat(measured, dim=1).cpu().numpy().astype(np.float64))
    staleness_N = np.concatenate([work.packed.staleness_N for work in micro_batches])
    return Gradient(params.grad, loss, Measured(*rows, staleness_N=staleness_N))


def _tokens(policy: Policy, work: MicroBatch, scores: TokenScores) -> Tokens:
    return Tokens(
        logprobs_N=scores.logprobs_N,
        sampler_logprobs_N=policy.tensor(work.packed.sampler_logprobs_N),
        advantages_N=policy.tensor(work.packed.advantages_N),
        weights_N=policy.tensor(work.packed.weights_N),
        sequence_N=policy.tensor(work.packed.sequence_N),
        entropy_N=scores.entropy_N,
        start_logprobs_N=work.start_logprobs_N,
        base_logprobs_N=work.base_logprobs_N,
    )


def _per_token(terms: LossTerms, scores: TokenScores) -> Tensor:
    """Rows in the order of `Measured`'s fields. Shapes: (5, N)."""
    rows = (terms.log_ratio_N, terms.clipped_N, terms.masked_N, scores.entropy_N.detach(), terms.kl_base_N)
    return torch.stack([row.to(torch.float32) for row in rows])


def _last_kl(updates: Sequence[Update], minibatches: int) -> float:
    return float(np.concatenate([update.measured.kl_base_N for update in updates[-minibatches:]]).mean())


def _require_finite(where: str, **numbers: float) -> None:
    for name, value in numbers.items():
        if not np.isfinite(value):
            raise Reject(f"{where}: {name.replace('_', ' ')} is {value}; a lower optimizer.learning_rate may help")


def _require_agreement(where: str, mismatch: float | None, bound: float) -> None:
    if mismatch is not None and mismatch > bound:
        raise Reject(
            f"{where}: sampler and trainer disagree about tokens of this very version: mismatch {mismatch:.3g} nats, but "
            f"correction.max_sampler_mismatch is {bound:g}; the sampler does not serve what was trained, or samples by other rules"
        )
