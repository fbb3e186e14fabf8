"""Chunked output layer: log-probabilities and entropies of sampled tokens, without the logits of a whole micro-batch.

liger-kernel's fused losses support only its own objectives, or one temperature without entropy, and only GPUs. Here rows of
tasks with different temperatures and objectives are batched, so the module returns a value per token.

Products are in the base model's precision, or always in float32: a bfloat16 logit between 8 and 16 is rounded to
a sixteenth, and sampler and trainer round differently. Source: MiniMax-M1, arXiv 2506.13585; ScaleRL, arXiv 2510.13786.
"""

from typing import Any

import torch
from torch import Tensor

from common.pools.memory import LOGITS_CHUNK_ELEMENTS

PART_ROWS = 8192
"""Rows of the weight converted to float32 at a time: 128 MiB with a hidden size of 4,096."""


def sampled_logprobs(
    hidden_N_H: Tensor,
    head_V_H: Tensor,
    target_N: Tensor,
    temperatures_N: Tensor,
    *,
    entropy_gradient: bool = False,
    float32: bool = False,
    chunk_elements: int = LOGITS_CHUNK_ELEMENTS,
) -> tuple[Tensor, Tensor]:
    """log softmax(hWᵀ / temperature)[target] and the entropy, for a frozen W; at most `chunk_elements` logits exist at a time.

    Shapes: both (N,) float32. The entropy carries a gradient only with `entropy_gradient`. `float32`: compute products in float32.
    """
    head = _Float32Head(head_V_H) if float32 and head_V_H.dtype != torch.float32 else _Head(head_V_H)
    return _SampledLogprobs.apply(hidden_N_H, head, target_N, temperatures_N, entropy_gradient, chunk_elements)


class _Head:
    """Products with the output layer's weight, in its own precision."""

    def __init__(self, weight_V_H: Tensor) -> None:
        self.weight_V_H = weight_V_H

    def logits(self, hidden_N_H: Tensor) -> Tensor:
        """hWᵀ in float32. Shapes: (N, H) → (N, V)."""
        return (hidden_N_H @ self.weight_V_H.t()).float()

    def pulled(self, slope_N_V: Tensor) -> Tensor:
        """Gradient by hidden states from the gradient by logits. Shapes: (N, V) float32 → (N, H)."""
        return slope_N_V.to(self.weight_V_H.dtype) @ self.weight_V_H

    def slope(self, softmax_N_V: Tensor, logprobs_N: Tensor, target_N: Tensor) -> Tensor:
        """Gradient of the log-probability by hidden states, (onehot(target) − softmax)·W. Overwrites `softmax_N_V`.

        Shapes: (N, V), (N,), (N,) → (N, H). In bfloat16 the target's 1 − p is computed before rounding, because W[target] − softmax·W would
        lose
        it for a confident token. In float32 that order is no more accurate, and the digests of recorded steps depend on the current one.
        """
        if self.weight_V_H.dtype == torch.float32:
            return self.weight_V_H.index_select(0, target_N) - softmax_N_V @ self.weight_V_H
        softmax_N_V.scatter_(1, target_N[:, None], logprobs_N.expm1()[:, None])
        return self.pulled(softmax_N_V).neg_()


class _Float32Head(_Head):
    """`_Head` with float32 products of a narrower weight, of which only a part is converted to float32 at any time."""

    def logits(self, hidden_N_H: Tensor) -> Tensor:
        if hidden_N_H.is_cuda:  # accumulates in float32, as vLLM's engine does
            return torch.mm(hidden_N_H, self.weight_V_H.t(), out_dtype=torch.float32)
        return torch.cat([hidden_N_H.float() @ part.float().t() for part in self._parts()], dim=1)

    def pulled(self, slope_N_V: Tensor) -> Tensor:
        if slope_N_V.is_cuda:
            return torch.mm(slope_N_V.to(self.weight_V_H.dtype), self.weight_V_H, out_dtype=torch.float32)
        found_N_H = slope_N_V.new_zeros(slope_N_V.shape[0], self.weight_V_H.shape[1])
        for slope, part in zip(slope_N_V.split(PART_ROWS, dim=1), self._parts(), strict=True):
            found_N_H.addmm_(slope, part.float())
        return found_N_H

    def _parts(self) -> tuple[Tensor, ...]:
        return self.weight_V_H.split(PART_ROWS)


class _SampledLogprobs(torch.autograd.Function):
    """Gradients are computed in the forward pass, while the logits exist: equal work, and (N, H) instead of (N, V) to keep.

    ∂logprob/∂h = (onehot(target) − softmax)·W / temperature
    ∂entropy/∂h = −(softmax · (log softmax + entropy))·W / temperature, with `entropy_gradient`
    """

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        hidden_N_H, head, target_N, temperatures_N, entropy_gradient, chunk_elements = given
        wants_gradient = ctx.needs_input_grad[0]
        logprobs, entropies, slopes, entropy_slopes = [], [], [], []
        rows = max(1, chunk_elements // head.weight_V_H.shape[0])
        parts = (hidden_N_H.split(rows), target_N.split(rows), temperatures_N[:, None].split(rows))
        for hidden, target, temperature in zip(*parts, strict=True):
            logits = head.logits(hidden).div_(temperature)
            log_all = logits.sub_(logits.logsumexp(-1, keepdim=True))
            logprobs.append(log_all.gather(1, target[:, None])[:, 0])
            softmax = log_all.exp()
            entropy = -torch.linalg.vecdot(softmax, log_all)
            entropies.append(entropy)
            if wants_gradient:
                if entropy_gradient:
                    entropy_slopes.append(head.pulled(softmax * (log_all + entropy[:, None])))
                slopes.append(head.slope(softmax, logprobs[-1], target))
        entropy_N = torch.cat(entropies)
        if wants_gradient:
            ctx.save_for_backward(temperatures_N, torch.cat(slopes), *([torch.cat(entropy_slopes)] if entropy_gradient else []))
            ctx.dtype = hidden_N_H.dtype
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy_N)
        return torch.cat(logprobs), entropy_N

    @staticmethod
    def backward(ctx: Any, grad_logprobs_N: Tensor, grad_entropy_N: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        temperatures_N, slope_N_H, *entropy_slope = ctx.saved_tensors
        # In float32, regardless of the slopes' precision: the gradient is rounded once, at the end.
        gradient_N_H = grad_logprobs_N[:, None] * (slope_N_H / temperatures_N[:, None])
        for entropy_slope_N_H in entropy_slope:
            gradient_N_H.sub_(grad_entropy_N[:, None] * (entropy_slope_N_H / temperatures_N[:, None]))
        return gradient_N_H.to(ctx.dtype), None, None, None, None, None
