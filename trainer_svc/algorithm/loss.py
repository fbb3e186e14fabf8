"""The policy-gradient loss, a sum over sampled tokens. Pure.

It involves three policies. The *sampler* chose the tokens, and its log-probabilities travel with them. The *start* is the policy
before the step, under which the tokens' log-probabilities are recomputed. The *current* policy carries the gradient; it
differs from the start only after the step's first update, in later passes or minibatches.

A surrogate (`SURROGATES`) takes its importance ratio to the *proximal* policy. By default that is the sampler: one ratio
then covers staleness and the engine's numerics, and the clip is a trust region around the sampling policy. It may be the
start; then the ratio from sampler to start becomes a separate, truncated weight.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from common.spec import Algorithm, Correction

MAX_LOG_RATIO = 20.0
"""Maximum |log ratio|; beyond it the gradient is zero, so that one outlier token cannot make the loss infinite."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """Sampled tokens of a micro-batch. Shapes: all (N,) float32 except `sequence_N`.

    Gradient flows through `logprobs_N`, and through `entropy_N` if it has a coefficient. `start_logprobs_N` is None before
    the step's first update, when it equals `logprobs_N`. `base_logprobs_N`, the base model's, is None without a KL term.
    `sequence_N` int64 numbers the sequences of the micro-batch, which are complete, from 0.
    """

    logprobs_N: Tensor
    sampler_logprobs_N: Tensor
    advantages_N: Tensor
    weights_N: Tensor
    sequence_N: Tensor
    entropy_N: Tensor
    start_logprobs_N: Tensor | None = None
    base_logprobs_N: Tensor | None = None


@dataclass(frozen=True, eq=False)
class LossTerms:
    """A micro-batch's part of the loss, and detached values of each token for the metrics."""

    loss: Tensor
    """Scalar, with gradient; the parts of a step add up to its loss."""
    log_ratio_N: Tensor
    """log ratio of start to sampler, clamped."""
    clipped_N: Tensor
    """Bool: token without gradient, because it reached a bound of the surrogate."""
    masked_N: Tensor
    """Bool: token excluded, because sampler and start differ too much."""
    kl_base_N: Tensor
    """KL from the current policy to the base model, estimator k3; zero without a KL term."""


@dataclass(frozen=True, eq=False)
class Surrogate:
    """Unweighted objective of each token. Shapes: (N,); `clipped_N` is bool."""

    objective_N: Tensor
    clipped_N: Tensor


def policy_loss(tokens: Tokens, algorithm: Algorithm, correction: Correction) -> LossTerms:
    """−Σ w · (c · surrogate − β · KL to the base model + η · entropy), c from `correction_weights`."""
    start_N = tokens.logprobs_N.detach() if tokens.start_logprobs_N is None else tokens.start_logprobs_N
    proximal_N = tokens.sampler_logprobs_N if correction.proximal == "sampler" else start_N
    surrogate = SURROGATES[algorithm.loss](tokens, proximal_N, algorithm)
    log_ratio_N = log_ratio(start_N, tokens.sampler_logprobs_N)
    weights_N = tokens.weights_N
    corrected_N = correction_weights(log_ratio_N, correction)
    loss = -((weights_N if corrected_N is None else weights_N * corrected_N) * surrogate.objective_N).sum()
    kl_base_N = torch.zeros_like(log_ratio_N)
    if tokens.base_logprobs_N is not None:
        loss = loss + algorithm.kl_coefficient * (weights_N * kl(tokens.logprobs_N, tokens.base_logprobs_N, algorithm.kl_estimator)).sum()
        kl_base_N = kl(tokens.logprobs_N.detach(), tokens.base_logprobs_N, "k3")
    if algorithm.entropy_coefficient:
        loss = loss - algorithm.entropy_coefficient * (weights_N * tokens.entropy_N).sum()
    masked_N = ~is_trusted(log_ratio_N, correction)
    return LossTerms(loss, log_ratio_N, surrogate.clipped_N & ~masked_N, masked_N, kl_base_N)


def log_ratio(logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
    """log ρ, within ±MAX_LOG_RATIO."""
    return (logprobs_N - reference_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


# ------------------------------------------------------------------------------------------------------ surrogates


def ppo(tokens: Tokens, proximal_N: Tensor, algorithm: Algorithm) -> Surrogate:
    """min(ρ·A, clip(ρ, 1 − clip_low, 1 + clip_high)·A); with `dual_clip` c, never below c·A for A < 0.

    Source: PPO, arXiv 1707.06347, eq. 7; asymmetric bounds: DAPO, arXiv 2503.14476, eq. 8; dual clip: arXiv 1912.09729.
    """
    ratio_N = log_ratio(tokens.logprobs_N, proximal_N).exp()
    return _clipped(ratio_N, tokens.advantages_N, algorithm)


def gspo(tokens: Tokens, proximal_N: Tensor, algorithm: Algorithm) -> Surrogate:
    """PPO with one ratio for a whole sequence: exp of the mean of its tokens' log ρ.

    With `normalize = "sequence"` it is the paper's objective.   Source: GSPO, arXiv 2507.18071, eq. 5 and 7.
    """
    sequences = int(tokens.sequence_N[-1]) + 1 if len(tokens.sequence_N) else 0
    log_ratio_N = tokens.logprobs_N - proximal_N
    sums_S = log_ratio_N.new_zeros(sequences).index_add(0, tokens.sequence_N, log_ratio_N)
    counts_S = torch.bincount(tokens.sequence_N, minlength=sequences)
    ratio_S = (sums_S / counts_S).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return _clipped(ratio_S.index_select(0, tokens.sequence_N), tokens.advantages_N, algorithm)


def cispo(tokens: Tokens, proximal_N: Tensor, algorithm: Algorithm) -> Surrogate:
    """sg(clip(ρ, 1 − clip_low, 1 + clip_high))·A·log π, sg without gradient: tokens beyond the bounds still learn.

    Tokens beyond the bounds count as clipped.   Source: CISPO, MiniMax-M1, arXiv 2506.13585, eq. 4 and 5.
    """
    ratio_N = log_ratio(tokens.logprobs_N.detach(), proximal_N).exp()
    bounded_N = ratio_N.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high)
    return Surrogate(bounded_N * tokens.advantages_N * tokens.logprobs_N, bounded_N != ratio_N)


def reinforce(tokens: Tokens, proximal_N: Tensor, _: Algorithm) -> Surrogate:
    """ρ·A: the importance-sampled policy gradient, without any bound. Source: REINFORCE, Williams 1992; off-policy: arXiv 1205.4839."""
    ratio_N = log_ratio(tokens.logprobs_N, proximal_N).exp()
    return Surrogate(ratio_N * tokens.advantages_N, torch.zeros_like(ratio_N, dtype=torch.bool))


def _clipped(ratio_N: Tensor, advantages_N: Tensor, algorithm: Algorithm) -> Surrogate:
    clipped_N = ratio_N.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high)
    objective_N = torch.minimum(ratio_N * advantages_N, clipped_N * advantages_N)
    is_clipped_N = ratio_N.detach() * advantages_N > clipped_N.detach() * advantages_N
    if algorithm.dual_clip is not None:
        floor_N = algorithm.dual_clip * advantages_N
        is_floored_N = (advantages_N < 0) & (objective_N.detach() < floor_N)
        objective_N = torch.where(is_floored_N, floor_N, objective_N)
        is_clipped_N = is_clipped_N | is_floored_N
    return Surrogate(objective_N, is_clipped_N)


SURROGATES: dict[str, Callable[[Tokens, Tensor, Algorithm], Surrogate]] = {"ppo": ppo, "gspo": gspo, "cispo": cispo, "reinforce": reinforce}


# ------------------------------------------------------------------------------------- corrections and regularisers


def correction_weights(log_ratio_N: Tensor, correction: Correction) -> Tensor | None:
    """Weight of each token that corrects from sampler to start, without gradient; None: all are 1.

    With `proximal = "start"` the ratio itself, truncated at `truncate`. Zero if it is outside the mask's bounds.
    Source: decoupled policies: arXiv 2110.00641, and AReaL, arXiv 2505.24298; truncation: IMPALA, arXiv
    1802.01561; masking: IcePop, arXiv 2510.18855.
    """
    weights_N = log_ratio_N.exp().clamp(max=correction.truncate) if correction.proximal == "start" else None
    if correction.mask_low == 0 and correction.mask_high is None:
        return weights_N
    trusted_N = is_trusted(log_ratio_N, correction).to(log_ratio_N.dtype)
    return trusted_N if weights_N is None else weights_N * trusted_N


def is_trusted(log_ratio_N: Tensor, correction: Correction) -> Tensor:
    """Whether the ratio of start to sampler is within the mask's bounds. Shapes: (N,) → (N,) bool."""
    ratio_N = log_ratio_N.exp()
    trusted_N = ratio_N >= correction.mask_low
    return trusted_N if correction.mask_high is None else trusted_N & (ratio_N <= correction.mask_high)


def kl(logprobs_N: Tensor, base_logprobs_N: Tensor, estimator: Literal["k1", "k2", "k3"]) -> Tensor:
    """Estimates of KL(policy ‖ base) from tokens of the policy, with d = log π − log π_base.

    k1: d, unbiased as a value, but its mean gradient is zero: useful only as a metric. k2: d²/2, whose gradient is that of
    the KL. k3: exp(−d) − 1 + d, unbiased and never negative (GRPO's).
    Source: Schulman, "Approximating KL divergence", 2020; gradients: arXiv 2506.09477.
    """
    difference_N = log_ratio(logprobs_N, base_logprobs_N)
    match estimator:
        case "k1":
            return difference_N
        case "k2":
            return difference_N.square() / 2
        case "k3":
            return (-difference_N).exp() - 1 + difference_N


def token_weights(sampled_tokens: Sequence[int], normalize: Literal["token", "sequence", "constant"], reply_tokens: int) -> list[float]:
    """Weight of each sampled token in the step's loss, by sequence; `normalize` is the task's `algorithm.normalize`.

    token: 1 / all tokens of the step. sequence: 1 / (sequences · tokens of its sequence). constant: 1 / (sequences ·
    `reply_tokens`), the maximum that a trajectory samples in all its turns, so a token counts the same in short and long trajectories
    (Dr. GRPO, arXiv 2503.20783).
    A sequence without tokens has weight 0, but still counts among the sequences.
    """
    sequences, total = len(sampled_tokens), sum(sampled_tokens)
    match normalize:
        case "token":
            return [1 / total if tokens else 0.0 for tokens in sampled_tokens]
        case "sequence":
            return [1 / (sequences * tokens) if tokens else 0.0 for tokens in sampled_tokens]
        case "constant":
            return [1 / (sequences * reply_tokens) if tokens else 0.0 for tokens in sampled_tokens]
