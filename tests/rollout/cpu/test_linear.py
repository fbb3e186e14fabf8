"""Linear layers on a CPU give a plain product, whatever lies in memory how."""

from typing import Any

import pytest
import torch

from rollout_svc.engine.cpu import linear
from tests.rollout.cpu.layers import layer_with

OUTPUTS, INPUTS = 6, 4


@pytest.mark.parametrize("is_embedding", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_layer_multiplies_by_its_weight(is_embedding: bool, has_bias: bool) -> None:
    weight, bias, x = torch.randn(OUTPUTS, INPUTS), torch.randn(OUTPUTS) if has_bias else None, torch.randn(3, INPUTS)
    layer = layer_with(weight.clone())
    linear.prepare(layer, remove_weight=not is_embedding)
    expected = x @ weight.t() + (0 if bias is None else bias)
    torch.testing.assert_close(layer.cpu_linear(x, layer.weight, bias), expected)
    torch.testing.assert_close(layer.weight.data, weight)
    assert layer.weight.is_contiguous() == is_embedding  # whose rows are read one by one
    assert layer.weight.t().is_contiguous() != is_embedding


def test_what_is_no_matrix_of_float32_stays_with_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[Any] = []

    def keep(layer: Any, _: bool) -> None:
        left.append(layer)

    monkeypatch.setattr(linear, "_vllms", keep)
    layers = [
        layer_with(torch.zeros(4, 4, dtype=torch.bfloat16)),
        layer_with(torch.zeros(2, 4, 4)),
        layer_with(torch.zeros(4, 4, device="meta")),
    ]
    for layer in layers:
        linear.prepare(layer, remove_weight=True)
    assert left == layers
