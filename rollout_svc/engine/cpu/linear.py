"""Products of matrices on a CPU: linear layers by PyTorch's own, and products in which a row has the same bits for every number of rows.

vLLM gives linear layers to oneDNN, which compiles a kernel for each number of rows that it has not seen lately (it remembers 32 a layer).
Numbers of rows change from one engine step to the next. For layers of the tiny model, µs a product in the mean: 1 row 43 against 8 here,
64 rows 127 against 79, 1 to 60 rows by chance 130 against 46.

Libraries for products choose another kernel where there are few rows, and it adds in another order. MKL has strict modes without such
kernels, for Intel's processors alone (`engine.start.REPRODUCIBLE`). On an AMD EPYC, whatever the mode, products of fewer than 4 rows
differ from all larger ones, or of fewer than 12 with two threads. So rows are filled up with zeros to that number. It depends on the shape
and is measured once for each: 1 in a strict mode, where nothing is filled. Where the bits never settle, as with many threads, every
product has `CHUNK` rows.
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
"""Numbers of rows that are tried."""
CHUNK = 16
"""Maximum number that rows are filled up to, and rows of a product where the bits never settle."""

Product = Callable[[torch.Tensor], torch.Tensor]
"""(n, I) → (n, O), each row for itself."""


@dataclass(frozen=True)
class Rows:
    """Numbers of rows that products of one shape may have."""

    minimum: int = 1
    is_maximum: bool = False
    """Whether every product has exactly `minimum` rows."""

    def compute(self, product: Product, x_n_I: torch.Tensor) -> torch.Tensor:
        """`product` of x, in products of numbers of rows that are allowed."""
        n = len(x_n_I)
        if n < self.minimum:
            return product(torch.nn.functional.pad(x_n_I, (0, 0, 0, self.minimum - n)))[:n]
        if n == self.minimum or not self.is_maximum:
            return product(x_n_I)
        return torch.cat([self.compute(product, chunk) for chunk in x_n_I.split(self.minimum)])


ANY = Rows()


class Measured:
    """Numbers of rows by the shape and layout of weights, measured in this process with its present threads."""

    def __init__(self) -> None:
        self._found: dict[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], Rows] = {}

    def rows(self, weight_I_O: torch.Tensor) -> Rows:
        """Numbers of rows for products by weights (I, O) of this shape and layout.

        The weights must not be zero everywhere, as an adapter's are before they are loaded.
        """
        kind = (tuple(weight_I_O.shape), weight_I_O.stride(), weight_I_O.dtype)
        if kind not in self._found:
            self._found[kind] = allowed_rows(lambda x_n_I: torch.mm(x_n_I, weight_I_O), len(weight_I_O), weight_I_O.dtype)
        return self._found[kind]


def allowed_rows(product: Product, inputs: int, dtype: torch.dtype = torch.float32) -> Rows:
    """From the smallest of `COUNTS` on from which a row of `product` has the same bits, else `CHUNK` each time."""
    x_n_I = torch.randn(COUNTS[-1], inputs, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = product(x_n_I)
    found = COUNTS[-1]
    for count in reversed(COUNTS[:-1]):
        if not torch.equal(product(x_n_I[:count]), expected[:count]):
            break
        found = count
    return Rows(found) if found <= CHUNK else Rows(CHUNK, is_maximum=True)


def install(measured: Measured | None = None) -> None:
    """Replace the products of models that vLLM loads in this process from now on. `measured`: so that no row depends on their number."""
    utils.dispatch_cpu_unquantized_gemm = partial(prepare, measured=measured)


def prepare(layer: Any, remove_weight: bool, measured: Measured | None = None) -> None:
    """Decide how `layer` multiplies by its weight (O, I); `remove_weight` states that nothing else reads the weight."""
    weight = layer.weight
    if weight.is_meta or weight.ndim != 2 or weight.dtype != torch.float32:
        _vllms(layer, remove_weight)
        return
    if remove_weight:  # an embedding is read row by row: it stays as it is
        layer.weight.data = weight.data.t().contiguous().t()  # inputs outermost: a product of few rows is up to twice as fast so
    plain = layer.weight.data.as_subclass(torch.Tensor)  # vLLM's own class answers each operation in Python
    rows = measured.rows(plain.t()) if measured else ANY

    def multiply(x: torch.Tensor, _: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return rows.compute(lambda part: linear(part, plain, bias), x)

    layer.cpu_linear = multiply
