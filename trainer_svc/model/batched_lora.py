"""Batched LoRA: several adapters in one forward pass, each for a range of tokens, with its own rank and scale. Pure.

Two implementations give equal results up to rounding: a loop over the parts, the plain reference, which copies nothing,
and `grouped_mm`, one kernel for all parts, for a GPU with many small parts. In both, one part's numbers never enter
another's, so non-finite values do not spread.

Source: one frozen product for all tokens and the low-rank terms grouped: Punica, arXiv 2310.18547; in training: mLoRA,
arXiv 2312.02515.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any

import structlog
import torch
from torch import Tensor
from torch.nn import functional

from trainer_svc.model.lora import Layout, LoraModule, Product, single_product

RANK_MULTIPLE = 8
"""Multiple to which ranks are padded: `grouped_mm` needs rows of a multiple of 16 bytes on a GPU."""
GROUPED_MM_CAPABILITIES = (9, 10)
"""Major compute capabilities of GPUs for which PyTorch 2.13 has a kernel of `grouped_mm`, in bfloat16 alone (`GroupedBlas.cpp`)."""
MAX_CACHED_INDICES = 8
"""Maximum cached indices of padded adapters, each twice the size of its adapter in float32: 0.7 GB for rank 32 of an 8 B model."""

log = structlog.get_logger()


@dataclass(frozen=True, eq=False)
class Part:
    """One adapter and its number of tokens. The parts' tokens follow one another in the order of the parts. `vector`: the adapter's
    parameters, in the precision of the computation."""

    tokens: int
    layout: Layout
    vector: Tensor


ProductBuilder = Callable[[Sequence[Part]], dict[str, Product]]
"""Function that builds the product of each changed layer for these parts, by layer name."""


def builder_on(device: torch.device, dtype: torch.dtype) -> ProductBuilder:
    """The faster of the two implementations on this device, in this precision.

    Without its kernel `grouped_mm` loops over the parts, too, and waits for the device in each product.
    """
    has_kernel = (
        device.type == "cuda" and dtype == torch.bfloat16 and torch.cuda.get_device_capability(device)[0] in GROUPED_MM_CAPABILITIES
    )
    return by_grouped_mm if has_kernel and _computes(device) else by_loop


def _computes(device: torch.device) -> bool:
    """Whether the installed PyTorch's `grouped_mm` runs on the device."""
    try:
        matrix = torch.zeros(16, 16, dtype=torch.bfloat16, device=device)
        functional.grouped_mm(matrix, matrix[None], offs=torch.tensor([16], dtype=torch.int32, device=device)).sum().item()
    except RuntimeError as error:
        log.warning("grouped_mm_unavailable", error=str(error))
        return False
    return True


def by_one(parts: Sequence[Part]) -> dict[str, Product]:
    """Products of a single part."""
    (part,) = parts
    return {name: single_product(pair) for name, pair in part.layout.views(part.vector).items()}


def by_loop(parts: Sequence[Part]) -> dict[str, Product]:
    """Products that loop over the parts in each layer, by layer name."""
    ends = list(accumulate(part.tokens for part in parts))
    pairs = [part.layout.views(part.vector) for part in parts]
    found: dict[str, Product] = {}
    for name in dict.fromkeys(name for own in pairs for name in own):
        present = [(slice(end - part.tokens, end), own[name]) for part, end, own in zip(parts, ends, pairs, strict=True) if name in own]
        rows, scalings = [rows for rows, _ in present], [pair.scaling for _, pair in present]
        found[name] = partial(_by_loop, rows, scalings, [matrix for _, pair in present for matrix in (pair.a, pair.b)])
    return found


def by_grouped_mm(parts: Sequence[Part]) -> dict[str, Product]:
    """Products of all parts together, by layer name. Each adapter is padded with zeros to the largest rank and to the modules of all parts.

    The adapters are padded once for the whole model, with two operations each.
    """
    largest = max(part.layout.rank for part in parts)
    rank = -(-largest // RANK_MULTIPLE) * RANK_MULTIPLE
    modules = tuple(dict.fromkeys(module for part in parts for module in part.layout.modules))
    if not modules:
        return {}
    device = parts[0].vector.device
    bank_G_P = torch.stack([_padded(part, modules, rank) for part in parts])
    sizes = [rank * width for module in modules for width in (module.inputs, module.outputs)]
    matrices = iter(bank_G_P.split(sizes, dim=1))
    tokens = [part.tokens for part in parts]
    offsets_G = torch.tensor(list(accumulate(tokens)), dtype=torch.int32, device=device)
    scaling_G = torch.tensor([part.layout.scaling for part in parts], dtype=bank_G_P.dtype, device=device)
    scaling_N_1 = scaling_G.repeat_interleave(torch.tensor(tokens, device=device), output_size=sum(tokens))[:, None]
    return {
        module.name: partial(
            _by_grouped_mm,
            offsets_G,
            scaling_N_1,
            next(matrices).view(len(parts), rank, module.inputs),
            next(matrices).view(len(parts), module.outputs, rank),
        )
        for module in modules
    }


def _by_loop(
    rows: Sequence[slice], scalings: Sequence[float], matrices: Sequence[Tensor], x: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    return _LoopProduct.apply(x, weight, bias, rows, scalings, *matrices)


def _by_grouped_mm(
    offsets_G: Tensor, scaling_N_1: Tensor, a_G_R_I: Tensor, b_G_O_R: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    return _GroupedMmProduct.apply(x, weight, bias, offsets_G, scaling_N_1, a_G_R_I, b_G_O_R)


def _padded(part: Part, modules: tuple[LoraModule, ...], rank: int) -> Tensor:
    if (part.layout.rank, part.layout.modules) == (rank, modules):
        return part.vector
    size = sum(rank * (module.inputs + module.outputs) for module in modules)
    index = _padded_index(part.layout.rank, part.layout.modules, modules, rank)
    return part.vector.new_zeros(size).index_copy(0, index.to(part.vector.device), part.vector)


@lru_cache(maxsize=MAX_CACHED_INDICES)
def _padded_index(own_rank: int, own: tuple[LoraModule, ...], modules: tuple[LoraModule, ...], rank: int) -> Tensor:
    """Index in the padded vector of each element of an adapter of the modules `own`. The padded vector holds A (rank, inputs) and
    B (outputs, rank) of each of `modules`."""
    start = dict(zip(modules, accumulate([0, *(rank * (module.inputs + module.outputs) for module in modules)]), strict=False))
    found: list[Tensor] = []
    for module in own:
        behind_a = start[module] + rank * module.inputs
        found.append(torch.arange(start[module], start[module] + own_rank * module.inputs))
        found.append((behind_a + torch.arange(module.outputs)[:, None] * rank + torch.arange(own_rank)).flatten())
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)


class _LoopProduct(torch.autograd.Function):
    """xWᵀ + bias, plus s·(xAᵀ)Bᵀ for each of the given ranges of rows with its own A, B and s.

    Shapes: x (N, inputs); W (outputs, inputs), frozen; then A (rank, inputs) and B (outputs, rank) of each range. Intermediates have the
    rank first, as in `lora.py`.
    """

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight, bias, ranges, scalings, *matrices = given
        output = functional.linear(x, weight, bias)
        hiddens = []
        for rows, scaling, a, b in zip(ranges, scalings, matrices[::2], matrices[1::2], strict=True):
            hiddens.append(a @ x[rows].t())
            output[rows].addmm_(hiddens[-1].t(), b.t(), alpha=scaling)
        ctx.save_for_backward(x, weight, *matrices, *hiddens)
        ctx.ranges, ctx.scalings = ranges, scalings
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (grad,) = gradients
        x, weight, *saved = ctx.saved_tensors
        parts = len(ctx.scalings)
        matrices, hiddens = saved[: 2 * parts], saved[2 * parts :]
        grad_x = grad @ weight if ctx.needs_input_grad[0] else None
        found: list[Tensor] = []
        for rows, scaling, a, b, hidden_R_N in zip(ctx.ranges, ctx.scalings, matrices[::2], matrices[1::2], hiddens, strict=True):
            grad_hidden_R_N = (b.t() @ grad[rows].t()).mul_(scaling)
            if grad_x is not None:
                grad_x[rows].addmm_(grad_hidden_R_N.t(), a)
            found += [grad_hidden_R_N @ x[rows], (hidden_R_N @ grad[rows]).mul_(scaling).t()]
        return grad_x, None, None, None, None, *found


class _GroupedMmProduct(torch.autograd.Function):
    """`_LoopProduct` with `torch.nn.functional.grouped_mm`.

    Shapes: x (N, inputs); W (outputs, inputs), frozen; `offsets_G` int32, ends of the parts' rows of x; `scaling_N_1`.
    """

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight, bias, offsets_G, scaling_N_1, a_G_R_I, b_G_O_R = given
        hidden = functional.grouped_mm(x, a_G_R_I.transpose(1, 2), offs=offsets_G) * scaling_N_1
        ctx.save_for_backward(x, weight, offsets_G, scaling_N_1, a_G_R_I, b_G_O_R, hidden)
        return functional.linear(x, weight, bias).add_(functional.grouped_mm(hidden, b_G_O_R.transpose(1, 2), offs=offsets_G))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad = gradients[0].contiguous()
        x, weight, offsets_G, scaling_N_1, a_G_R_I, b_G_O_R, hidden = ctx.saved_tensors
        grad_hidden = functional.grouped_mm(grad, b_G_O_R, offs=offsets_G) * scaling_N_1
        grad_x = (grad @ weight).add_(functional.grouped_mm(grad_hidden, a_G_R_I, offs=offsets_G)) if ctx.needs_input_grad[0] else None
        grad_a_G_R_I = functional.grouped_mm(grad_hidden.t(), x, offs=offsets_G)
        grad_b_G_O_R = functional.grouped_mm(grad.t(), hidden, offs=offsets_G)
        return grad_x, None, None, None, None, grad_a_G_R_I, grad_b_G_O_R
