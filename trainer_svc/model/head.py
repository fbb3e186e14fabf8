"""Chunked output layer: log-probabilities and entropies of sampled tokens, without the logits of a whole micro-batch.

liger-kernel's fused losses support only its own objectives, or one temperature without entropy, and only GPUs. Here rows of
tasks with different temperatures and objectives are batched, so the module returns a value for each token.
"""

from typing import Any

import torch
from torch import Tensor

from common.memory import LOGITS_CHUNK_ELEMENTS


def sampled_logprobs(
    hidden_N_H: Tensor,
    head_V_H: Tensor,
    target_N: Tensor,
    temperatures_N: Tensor,
    *,
    entropy_gradient: bool = False,
    chunk_elements: int = LOGITS_CHUNK_ELEMENTS,
) -> tuple[Tensor, Tensor]:
    """log softmax(hWᵀ / temperature)[target] and the entropy, for a frozen W; at most `chunk_elements` logits exist at once.

    Shapes: both (N,) float32. The entropy carries a gradient only with `entropy_gradient`.
    """
    return _SampledLogprobs.apply(hidden_N_H, head_V_H, target_N, temperatures_N, entropy_gradient, chunk_elements)


class _SampledLogprobs(torch.autograd.Function):
    """Gradients are computed in the forward pass, while the logits exist: equal work, and (N, H) instead of (N, V) to keep.

    ∂logprob/∂h = (onehot(target) − softmax)·W / temperature
    ∂entropy/∂h = −(softmax · (log softmax + entropy))·W / temperature, with `entropy_gradient`
    """

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        hidden_N_H, head_V_H, target_N, temperatures_N, entropy_gradient, chunk_elements = given
        wants_gradient = ctx.needs_input_grad[0]
        logprobs, entropies, slopes, entropy_slopes = [], [], [], []
        rows = max(1, chunk_elements // head_V_H.shape[0])
        parts = (hidden_N_H.split(rows), target_N.split(rows), temperatures_N[:, None].split(rows))
        for hidden, target, temperature in zip(*parts, strict=True):
            logits = (hidden @ head_V_H.t()).float().div_(temperature)
            log_all = logits.sub_(logits.logsumexp(-1, keepdim=True))
            logprobs.append(log_all.gather(1, target[:, None])[:, 0])
            softmax = log_all.exp()
            entropy = -torch.linalg.vecdot(softmax, log_all)
            entropies.append(entropy)
            if wants_gradient:
                if entropy_gradient:
                    pull = softmax * (log_all + entropy[:, None])
                    entropy_slopes.append(pull.to(head_V_H.dtype) @ head_V_H)
                slopes.append(_slope(softmax, logprobs[-1], target, head_V_H))
        entropy_N = torch.cat(entropies)
        if wants_gradient:
            ctx.save_for_backward(temperatures_N, torch.cat(slopes), *([torch.cat(entropy_slopes)] if entropy_gradient else []))
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy_N)
        return torch.cat(logprobs), entropy_N

    @staticmethod
    def backward(ctx: Any, grad_logprobs_N: Tensor, grad_entropy_N: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        temperatures_N, slope_N_H, *entropy_slope = ctx.saved_tensors
        # In float32, whatever the slopes' precision: the gradient is rounded once, at the end.
        gradient_N_H = grad_logprobs_N[:, None] * (slope_N_H / temperatures_N[:, None])
        for entropy_slope_N_H in entropy_slope:
            gradient_N_H.sub_(grad_entropy_N[:, None] * (entropy_slope_N_H / temperatures_N[:, None]))
        return gradient_N_H.to(slope_N_H.dtype), None, None, None, None, None


def _slope(softmax_N_V: Tensor, logprobs_N: Tensor, target_N: Tensor, head_V_H: Tensor) -> Tensor:
    """(onehot(target) − softmax)·W. Overwrites `softmax_N_V`. Shapes: (N, V), (N,), (N,), (V, H) → (N, H).

    In bfloat16 the target's 1 − p is taken before rounding, as W[target] − softmax·W would lose it for a confident token. In
    float32 that order has no smaller error, and the digests of recorded steps depend on it.
    """
    if head_V_H.dtype == torch.float32:
        return head_V_H.index_select(0, target_N) - softmax_N_V @ head_V_H
    softmax_N_V.scatter_(1, target_N[:, None], logprobs_N.expm1()[:, None])
    return (softmax_N_V.to(head_V_H.dtype) @ head_V_H).neg_()
