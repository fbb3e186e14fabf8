"""Several adapters in one layer: the first tokens belong to one, the next to another, each with its own rank and scale. Pure.

Two ways that give the same numbers but for rounding: a loop over the parts, which is the plain reference and copies
nothing, and `grouped_mm`, one kernel for all parts, which is what a GPU with many small parts needs. In both, a part's
numbers never meet another's, so what is not finite stays where it is.

Source: one frozen product for all tokens and the low-rank terms grouped: Punica, arXiv 2310.18547; in training: mLoRA,
arXiv 2312.02515.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

RANK_MULTIPLE = 8
"""Ranks are filled up to a multiple of this: `grouped_mm` wants rows of a multiple of 16 bytes on a GPU."""


class LoopedProduct(torch.autograd.Function):
    """xWᵀ + bias, plus s·(xAᵀ)Bᵀ for each part of x with its own A, B and s; a scaling of None: nothing is added there.

    Shapes: x (N, inputs); W (outputs, inputs), frozen; then A (rank, inputs) and B (outputs, rank) of each part that has
    any. `ends` says where each part's rows of x end.
    """

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight, bias, ends, scalings, *matrices = given
        output = functional.linear(x, weight, bias)
        hiddens = []
        for rows, scaling, a, b in _parts(ends, scalings, matrices):
            hiddens.append(x[rows] @ a.t())
            output[rows].addmm_(hiddens[-1], b.t(), alpha=scaling)
        ctx.save_for_backward(x, weight, *matrices, *hiddens)
        ctx.ends, ctx.scalings = ends, scalings
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (grad,) = gradients
        x, weight, *saved = ctx.saved_tensors
        matrices, hiddens = saved[: len(saved) * 2 // 3], saved[len(saved) * 2 // 3 :]
        grad_x = grad @ weight if ctx.needs_input_grad[0] else None
        found: list[Tensor] = []
        for (rows, scaling, a, b), hidden in zip(_parts(ctx.ends, ctx.scalings, matrices), hiddens, strict=True):
            grad_hidden = (grad[rows] @ b).mul_(scaling)
            if grad_x is not None:
                grad_x[rows].addmm_(grad_hidden, a)
            found += [grad_hidden.t() @ x[rows], (grad[rows].t() @ hidden).mul_(scaling)]
        return grad_x, None, None, None, None, *found


class GroupedMmProduct(torch.autograd.Function):
    """As `LoopedProduct`, by `torch.nn.functional.grouped_mm`: ranks are filled up with zeros to the largest."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight, bias, ends, scalings, *matrices = given
        a_G_R_I, b_G_R_O = _stacked(x, weight, ends, scalings, matrices)
        offsets = torch.tensor(ends, dtype=torch.int32, device=x.device)
        hidden = functional.grouped_mm(x, a_G_R_I.transpose(1, 2), offs=offsets)
        ctx.save_for_backward(x, weight, offsets, a_G_R_I, b_G_R_O, hidden)
        ctx.ends, ctx.scalings, ctx.ranks = ends, scalings, [a.shape[0] for a in matrices[::2]]
        return functional.linear(x, weight, bias).add_(functional.grouped_mm(hidden, b_G_R_O, offs=offsets))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad = gradients[0].contiguous()
        x, weight, offsets, a_G_R_I, b_G_R_O, hidden = ctx.saved_tensors
        grad_hidden = functional.grouped_mm(grad, b_G_R_O.transpose(1, 2), offs=offsets)
        grad_x = (grad @ weight).add_(functional.grouped_mm(grad_hidden, a_G_R_I, offs=offsets)) if ctx.needs_input_grad[0] else None
        grad_a_G_R_I = functional.grouped_mm(grad_hidden.t(), x, offs=offsets)
        grad_b_G_R_O = functional.grouped_mm(hidden.t(), grad, offs=offsets)
        found: list[Tensor] = []
        ranks = iter(ctx.ranks)
        for part, scaling in enumerate(ctx.scalings):
            if scaling is not None:
                rank = next(ranks)
                found += [grad_a_G_R_I[part, :rank], grad_b_G_R_O[part, :rank].t() * scaling]
        return grad_x, None, None, None, None, *found


GroupedProduct = type[LoopedProduct] | type[GroupedMmProduct]


def grouped_product(device: torch.device) -> GroupedProduct:
    """The faster of the two on this device."""
    return GroupedMmProduct if device.type == "cuda" else LoopedProduct


def _parts(
    ends: Sequence[int], scalings: Sequence[float | None], matrices: Sequence[Tensor]
) -> Iterator[tuple[slice, float, Tensor, Tensor]]:
    """Of each part that has an adapter here: its rows, its scaling, A and B."""
    pairs = zip(matrices[::2], matrices[1::2], strict=True)
    for start, end, scaling in zip((0, *ends), ends, scalings, strict=False):
        if scaling is not None:
            yield slice(start, end), scaling, *next(pairs)


def _stacked(
    x: Tensor, weight: Tensor, ends: Sequence[int], scalings: Sequence[float | None], matrices: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """A (G, R, inputs) and s·Bᵀ (G, R, outputs), zero where a part has no adapter or a smaller rank."""
    most = max(a.shape[0] for a in matrices[::2])
    rank = -(-most // RANK_MULTIPLE) * RANK_MULTIPLE
    a_G_R_I = x.new_zeros(len(ends), rank, weight.shape[1])
    b_G_R_O = x.new_zeros(len(ends), rank, weight.shape[0])
    pairs = zip(matrices[::2], matrices[1::2], strict=True)
    for part, scaling in enumerate(scalings):
        if scaling is not None:
            a, b = next(pairs)
            a_G_R_I[part, : a.shape[0]] = a
            b_G_R_O[part, : a.shape[0]] = b.t() * scaling
    return a_G_R_I, b_G_R_O
