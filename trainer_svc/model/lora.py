"""LoRA layers of the frozen base model, and an adapter as one flat vector.

All parameters of an adapter are one float32 vector. A task's masters, gradient and moments are therefore four vectors: cloning,
clipping, updating and storing are one operation each, and the model never holds a task's state.
"""

import math
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import structlog
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from common.errors import Fatal

EXPERTS = "experts"
"""Transformers' name for the module with all experts of a layer, as a list or with fused weights."""
FUSED = ("qkv_proj", "gate_up_proj", "query_key_value", "c_attn", "W_pack", "Wqkv")
"""Names of layers that compute several projections of `lora.targets` in one fused layer."""

log = structlog.get_logger()


@dataclass(frozen=True)
class LoraModule:
    """A linear layer of the base model that an adapter changes."""

    name: str
    inputs: int
    outputs: int


@dataclass(frozen=True)
class Layout:
    """Layout of an adapter's vector: for each module in order, A (rank, inputs), then B (outputs, rank)."""

    rank: int
    alpha: float
    modules: tuple[LoraModule, ...]
    rank_stabilized: bool = False

    @property
    def scaling(self) -> float:
        """Scale of the adapter's product: alpha / rank, or alpha / √rank, with which large ranks learn as fast.

        Source: LoRA, arXiv 2106.09685; rsLoRA, arXiv 2312.03732.
        """
        return self.alpha / (math.sqrt(self.rank) if self.rank_stabilized else self.rank)

    @property
    def size(self) -> int:
        return sum(self.rank * (module.inputs + module.outputs) for module in self.modules)

    def views(self, vector: Tensor) -> dict[str, "Pair"]:
        """Matrices as views of `vector`, by module; gradients flow back into the vector."""
        sizes = [self.rank * width for module in self.modules for width in (module.inputs, module.outputs)]
        parts = iter(vector.split(sizes))
        return {
            module.name: Pair(next(parts).view(self.rank, module.inputs), next(parts).view(module.outputs, self.rank), self.scaling)
            for module in self.modules
        }


@dataclass(frozen=True, eq=False)
class Pair:
    """One module's adapter: a (rank, inputs), b (outputs, rank)."""

    a: Tensor
    b: Tensor
    scaling: float


Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""A layer's product with adapters: x (N, inputs), frozen weight, bias → (N, outputs)."""


class LoraLinear(nn.Linear):
    """Frozen linear layer that shares the weight of the replaced one and computes the attached product."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__(frozen.in_features, frozen.out_features, bias=False, device="meta")
        self.weight = frozen.weight
        self.bias = frozen.bias
        self.attached: Product | None = None

    def forward(self, input: Tensor) -> Tensor:
        if self.attached is None:
            return functional.linear(input, self.weight, self.bias)
        output = self.attached(input.reshape(-1, self.in_features), self.weight, self.bias)
        return output.view(*input.shape[:-1], self.out_features)


def single_product(pair: Pair) -> Product:
    """Product with one adapter for all of x."""

    def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _LoraProduct.apply(x, weight, bias, pair.a, pair.b, pair.scaling)

    return product


class _LoraProduct(torch.autograd.Function):
    """xWᵀ + bias + s·(xAᵀ)Bᵀ for a frozen W: equals autograd's computation, with sums fused into the matrix products.

    Shapes: x (N, inputs), W (outputs, inputs), A (rank, inputs), B (outputs, rank). Intermediates have the rank first: on a
    CPU a product with eight rows costs a third to a sixth of one with eight columns.
    """

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight, bias, a, b, scaling = given
        hidden_R_N = a @ x.t()
        ctx.save_for_backward(x, hidden_R_N, weight, a, b)
        ctx.scaling = scaling
        return functional.linear(x, weight, bias).addmm_(hidden_R_N.t(), b.t(), alpha=scaling)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (grad,) = gradients
        x, hidden_R_N, weight, a, b = ctx.saved_tensors
        grad_hidden_R_N = (b.t() @ grad.t()).mul_(ctx.scaling)
        grad_x = (grad @ weight).addmm_(grad_hidden_R_N.t(), a) if ctx.needs_input_grad[0] else None
        return grad_x, None, None, grad_hidden_R_N @ x, (hidden_R_N @ grad).mul_(ctx.scaling).t(), None


def adapt(model: nn.Module, targets: tuple[str, ...]) -> dict[str, LoraLinear]:
    """Replace every linear layer of `model` whose own name is in `targets`; returns the replacements by full name, in order.

    Raises: Fatal for a mixture of experts, whose weights are no linear layers, and for projections fused in one layer: an adapter
    would silently exclude them. Other linear layers that are not targets are logged.
    """
    experts = next((name for name, _ in model.named_modules() if name.rpartition(".")[2] == EXPERTS), None)
    if experts is not None:
        raise Fatal(
            f"base model of architecture {type(model).__name__} is a mixture of experts ({experts}), which adapters here cannot change; "
            "correct `model` in the pools file to a model with dense layers"
        )
    own_names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    if fused := [name for name in FUSED if name in own_names]:
        raise Fatal(
            f"base model of architecture {type(model).__name__} computes several projections in one layer ({', '.join(fused)}), "
            "which adapters here cannot change: they would train the rest alone; "
            f"correct `model` in the pools file to a model with {', '.join(targets)}"
        )
    found = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear) and name.rpartition(".")[2] in targets}
    if unchanged := sorted(_linear_names(model) - set(targets)):
        log.warning("layers_without_adapters", architecture=type(model).__name__, layers=unchanged)
    layers: dict[str, LoraLinear] = {}
    for name, module in found.items():
        parent, _, own = name.rpartition(".")
        layers[name] = LoraLinear(module)
        setattr(model.get_submodule(parent), own, layers[name])
    return layers


def _linear_names(model: nn.Module) -> set[str]:
    """Own names of the linear layers that repeat in each decoder layer; excludes the output layer, which exists once."""
    names = [name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)]
    return {name for name in names if names.count(name) > 1}


@contextmanager
def attached(layers: Mapping[str, LoraLinear], products: Mapping[str, Product]) -> Generator[None]:
    """Context in which the model computes with `products`; after it, the model is the base model again."""
    try:
        for name, product in products.items():
            layers[name].attached = product
        yield
    finally:
        for layer in layers.values():
            layer.attached = None
