"""Matrix products on a CPU: linear layers through PyTorch, and products whose rows are bitwise equal for every batch size.

vLLM gives linear layers to oneDNN, which compiles a kernel for each row count that is not among the last 32 of a layer. Row counts change
with every engine step. Mean µs per product for layers of the tiny model, oneDNN against this module: 1 row 43 against 8, 64 rows 127
against 79, 1 to 60 rows at random 130 against 46.
Libraries choose another kernel for few rows, and it adds in another order. MKL has strict modes without such kernels, but only for Intel's
processors (`engine.start.REPRODUCIBLE`). On an AMD EPYC, in any mode, products of fewer than 4 rows (12 with two threads) differ from all
larger ones. So products are padded with zero rows to a minimum. The minimum depends on the shape and is measured once for each: 1, so no
padding, in a strict mode. If results never become stable, as with many threads, every product has `CHUNK` rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.functional import linear
from vllm.model_executor.layers import utils

_vllms = utils.dispatch_cpu_unquantized_gemm

COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 19, 23, 33, 47, 64)
"""Row counts to test."""
CHUNK = 16
"""Maximum rows that products are padded to, and the fixed row count if results never become stable."""

Product = Callable[[torch.Tensor], torch.Tensor]
"""(n, I) → (n, O), row by row."""


@dataclass(frozen=True)
class Rows:
    """Allowed row counts of products of one shape."""

    minimum: int = 1
    is_maximum: bool = False
    """Whether every product has exactly `minimum` rows."""

    def compute(self, product: Product, x_n_I: torch.Tensor) -> torch.Tensor:
        """Compute `product` of x in one or more calls with allowed row counts; x (n, I) → (n, O)."""
        n = len(x_n_I)
        if n < self.minimum:
            return product(torch.nn.functional.pad(x_n_I, (0, 0, 0, self.minimum - n)))[:n]
        if n == self.minimum or not self.is_maximum:
            return product(x_n_I)
        return torch.cat([self.compute(product, chunk) for chunk in x_n_I.split(self.minimum)])


ANY = Rows()


class Measured:
    """Allowed row counts by shape and layout of the weights, measured in this process with its present threads."""

    def __init__(self) -> None:
        self._found: dict[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], Rows] = {}

    def rows(self, weight_I_O: torch.Tensor) -> Rows:
        """Allowed row counts for products with weights (I, O) of this shape and layout.

        The weights must not be all zero, as an adapter's are before they are loaded.
        """
        kind = (tuple(weight_I_O.shape), weight_I_O.stride(), weight_I_O.dtype)
        if kind not in self._found:
            self._found[kind] = allowed_rows(lambda x_n_I: torch.mm(x_n_I, weight_I_O), len(weight_I_O), weight_I_O.dtype)
        return self._found[kind]


def allowed_rows(product: Product, inputs: int, dtype: torch.dtype = torch.float32) -> Rows:
    """The smallest of `COUNTS` from which a row of `product` keeps the same bits; if it exceeds `CHUNK`, a fixed `CHUNK` rows."""
    x_n_I = torch.randn(COUNTS[-1], inputs, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = product(x_n_I)
    found = COUNTS[-1]
    for count in reversed(COUNTS[:-1]):
        if not torch.equal(product(x_n_I[:count]), expected[:count]):
            break
        found = count
    return Rows(found) if found <= CHUNK else Rows(CHUNK, is_maximum=True)


def install(measured: Measured | None = None) -> None:
    """Replace linear layers of models that vLLM loads in this process from now on. `measured`: makes rows independent of the batch size."""
    utils.dispatch_cpu_unquantized_gemm = partial(prepare, measured=measured)


def prepare(layer: Any, remove_weight: bool, measured: Measured | None = None) -> None:
    """Choose how `layer` multiplies by its weight (O, I). `remove_weight`: nothing else reads the weight."""
    weight = layer.weight
    if weight.is_meta or weight.ndim != 2 or weight.dtype != torch.float32:
        _vllms(layer, remove_weight)
        return
    if remove_weight:  # an embedding is read row by row, so its layout stays
        layer.weight.data = weight.data.t().contiguous().t()  # inputs outermost: up to twice as fast for few rows
    plain = layer.weight.data.as_subclass(torch.Tensor)  # vLLM's subclass intercepts every operation in Python
    rows = measured.rows(plain.t()) if measured else ANY

    def multiply(x: torch.Tensor, _: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return rows.compute(lambda part: linear(part, plain, bias), x)

    layer.cpu_linear = multiply
