"""Layers for the kernels of the CPU."""

from typing import Any

import torch


def layer_with(weight: torch.Tensor) -> Any:
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    return layer


SLOTS, RANK, INPUTS = 4, 4, 8
IDS: list[int | None] = [11, 12, None, 14]
"""Adapter in each slot."""
