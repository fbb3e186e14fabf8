"""Linear layers on a CPU, by PyTorch's own products.

vLLM gives them to oneDNN, which compiles a kernel for each number of rows that it has not seen lately (it remembers 32 a layer). Numbers
of rows change from one engine step to the next. For layers of the tiny model, µs a product in the mean: 1 row 43 against 8 here, 64 rows
127 against 79, 1 to 60 rows by chance 130 against 46.
"""

from functools import partial
from typing import Any

import torch
from torch.nn.functional import linear
from vllm.model_executor.layers import utils

from rollout_svc.engine.cpu.rows import ANY, Measured

_vllms = utils.dispatch_cpu_unquantized_gemm


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
