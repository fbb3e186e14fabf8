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

    ∂logprob/∂h = (W[target] − softmax·W) / temperature
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
                slopes.append((head_V_H.index_select(0, target) - softmax.to(head_V_H.dtype) @ head_V_H).div_(temperature))
                if entropy_gradient:
                    pull = softmax * (log_all + entropy[:, None])
                    entropy_slopes.append((pull.to(head_V_H.dtype) @ head_V_H).div_(-temperature))
        entropy_N = torch.cat(entropies)
        if wants_gradient:
            ctx.save_for_backward(torch.cat(slopes), *([torch.cat(entropy_slopes)] if entropy_gradient else []))
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy_N)
        return torch.cat(logprobs), entropy_N

    @staticmethod
    def backward(ctx: Any, grad_logprobs_N: Tensor, grad_entropy_N: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        slope_N_H, *entropy_slope = ctx.saved_tensors
        gradient_N_H = grad_logprobs_N[:, None].to(slope_N_H.dtype) * slope_N_H
        for entropy_slope_N_H in entropy_slope:
            gradient_N_H.add_(grad_entropy_N[:, None].to(slope_N_H.dtype) * entropy_slope_N_H)
        return gradient_N_H, None, None, None, None, None
