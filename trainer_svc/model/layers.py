"""Layers of the base model with a changed computation: recomputed decoder layers, and a selective last MLP.

Activation checkpointing: a decoder layer keeps only its input, and the backward pass recomputes the rest. The recomputation must see the
same state as the first, above all the adapters, which are attached to the model only during a forward (`lora.attached`). A forward
therefore gives each layer a context that restores this state, which the layer enters in the backward pass. The same operations on the same
inputs give the same bits on a CPU. Only a model's first layers are recomputed: their backward pass comes last, when the last layers, which
keep everything, have freed their memory. The very last layer is never recomputed.

Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174.

The last layer's MLP is computed for scored positions only, because no later layer mixes tokens.
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Computing = Callable[[], AbstractContextManager[None]]
"""Factory of the context in which a forward computes; each context is entered once."""


class Recomputation:
    """The recomputed layers of a model, and the context of its current forward."""

    def __init__(self, layers: nn.ModuleList, count: int) -> None:
        """Replaces the first `count` of `layers` in place."""
        self.count = count
        self._computing: Computing = nullcontext
        for index, layer in enumerate(layers[:count]):
            layers[index] = RecomputedLayer(layer, self.contexts)

    @contextmanager
    def within(self, computing: Computing) -> Generator[None]:
        """Context of a forward whose layers enter `computing()` when they are recomputed."""
        self._computing = computing
        try:
            yield
        finally:
            self._computing = nullcontext

    def contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Contexts of a layer's first computation, which runs in the forward's context, and of its recomputation."""
        return nullcontext(), self._computing()


class RecomputedLayer(nn.Module):
    """Decoder layer that keeps only its input if autograd records; exposes the attributes of the wrapped layer."""

    def __init__(self, inner: nn.Module, contexts: Callable[[], tuple[Any, Any]]) -> None:
        super().__init__()
        self.inner = inner
        self._contexts = contexts

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:  # a model may read a layer's kind of attention
            return getattr(super().__getattr__("inner"), name)

    def forward(self, *given: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.inner(*given, **options)
        return checkpoint(self.inner, *given, use_reentrant=False, preserve_rng_state=False, context_fn=self._contexts, **options)


def decoder_layers(model: nn.Module, linear_names: Iterable[str]) -> nn.ModuleList | None:
    """The model's list of decoder layers, which contain the linear layers `linear_names`; None if the model has no such list."""
    for name in linear_names:
        path = name.split(".")
        numbers = [place for place, part in enumerate(path) if part.isdigit()]
        found = model.get_submodule(".".join(path[: numbers[0]])) if numbers else None
        return found if isinstance(found, nn.ModuleList) and len(found) > 1 else None
    return None


class SelectiveMLP(nn.Module):
    """Token-wise module that computes selected tokens only; the others get zeros."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self._wanted_W: Tensor | None = None

    @contextmanager
    def only(self, wanted_W: Tensor) -> Generator[None]:
        """Context in which only these tokens are computed: flat indices (row · T + column), each once."""
        self._wanted_W = wanted_W
        try:
            yield
        finally:
            self._wanted_W = None

    def forward(self, x_B_T_H: Tensor) -> Tensor:
        if self._wanted_W is None:
            return self.inner(x_B_T_H)
        flat_N_H = x_B_T_H.flatten(0, 1)
        found_1_W_H = self.inner(flat_N_H.index_select(0, self._wanted_W)[None])
        return flat_N_H.new_zeros(flat_N_H.shape).index_copy(0, self._wanted_W, found_1_W_H[0]).view(x_B_T_H.shape)


def select_in_last_mlp(model: nn.Module) -> tuple[SelectiveMLP, tuple[str, ...]] | None:
    """Make the last layer's MLP a `SelectiveMLP`; returns it and the original full names of its linear layers.

    None if the model's last `down_proj` is not in a child of the last of its list of layers. (An expert's is in the last of a
    list of experts, which is an MLP's child.)
    """
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    downs = [name.split(".") for name in names if name.endswith(".down_proj")]
    if not downs or len(downs[-1]) < 4:
        return None
    *path, layers, number, mlp, _ = downs[-1]
    listed = model.get_submodule(".".join([*path, layers]))
    if not isinstance(listed, nn.ModuleList) or int(number) != len(listed) - 1:
        return None
    selective = SelectiveMLP(listed[-1].get_submodule(mlp))
    setattr(listed[-1], mlp, selective)
    prefix = ".".join([*path, layers, number, mlp, ""])
    return selective, tuple(name for name in names if name.startswith(prefix))
