"""Interface to transformers' attention: rows with branches attend span by span (`attention_plan.py`), all others as in `sdpa`.

Models look up their attention by name. `BRANCHING` is `sdpa`, unless a forward has `spans`, which models normally pass down
unchanged. By comparison with the model's own logits the policy detects models that do not pass it, or whose layers are of another kind,
and then computes every trajectory in a separate row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from trainer_svc.model.attention_plan import Block
from trainer_svc.model.packing import Packed

BRANCHING = "branching"


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """A block of spans on the device. Shapes: `mask_S_1_Q_K` is added to the scores; None: plain causal."""

    queries_S_Q: Tensor
    keys_S_K: Tensor
    mask_S_1_Q_K: Tensor | None


@dataclass(frozen=True, eq=False)
class AttentionCalls:
    blocks: Sequence[AttentionCall]
    result_index_N: Tensor


def attention_calls(packed: Packed, tensor: Callable[[NDArray[Any]], Tensor], dtype: torch.dtype) -> AttentionCalls | None:
    """Attention calls of a micro-batch; None if plain causal attention suffices. `tensor` moves arrays to the device."""
    if packed.spans is None:
        return None
    blocks = [
        AttentionCall(
            tensor(block.queries_S_Q), tensor(block.keys_S_K), None if block.causal else _mask(tensor(visible(packed, block)), dtype)
        )
        for block in packed.spans.blocks
    ]
    return AttentionCalls(blocks, tensor(packed.spans.result_index_N))


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    spans: AttentionCalls | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer. Shapes: query, key, value (B, heads, T, D) → (B, T, heads, D). Options are sdpa's."""
    if spans is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    flat = [given.transpose(1, 2).flatten(0, 1) for given in (query, key, value)]
    found: list[Tensor] = []
    for call in spans.blocks:
        query_S_Q, key_S_K, value_S_K = (
            _taken(given, index) for given, index in zip(flat, (call.queries_S_Q, call.keys_S_K, call.keys_S_K), strict=True)
        )
        output, _ = sdpa_attention_forward(module, query_S_Q, key_S_K, value_S_K, call.mask_S_1_Q_K, **options)
        found.append(output.flatten(0, 1))
    output = torch.cat(found).index_select(0, spans.result_index_N)
    return output.view(query.shape[0], query.shape[2], *output.shape[1:]), None


def _taken(given_N_H_D: Tensor, index_S_L: Tensor) -> Tensor:
    """Tokens of each span. Shapes: (N, H, D), (S, L) → (S, H, L, D)."""
    return given_N_H_D.index_select(0, index_S_L.flatten()).view(*index_S_L.shape, *given_N_H_D.shape[1:]).transpose(1, 2)


def visible(packed: Packed, block: Block) -> NDArray[np.bool_]:
    """Whether a query may attend to a key: of its own branch or the prefix, and not later. Shapes: → (S, Q, K) bool."""
    position, branch = packed.positions_B_T.ravel(), packed.branch_B_T.ravel()
    queries_S_Q_1, keys_S_1_K = block.queries_S_Q[:, :, None], block.keys_S_K[:, None, :]
    is_key_S_1_K = np.arange(block.keys_S_K.shape[1]) < block.keys_S[:, None, None]
    own = (branch[keys_S_1_K] == 0) | (branch[keys_S_1_K] == branch[queries_S_Q_1])
    return is_key_S_1_K & own & (position[keys_S_1_K] <= position[queries_S_Q_1])


def _mask(visible_S_Q_K: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive mask, built once here, not from a boolean mask in every layer. Shapes: (S, Q, K) → (S, 1, Q, K)."""
    mask = torch.zeros(visible_S_Q_K.shape, dtype=dtype, device=visible_S_Q_K.device)
    return mask.masked_fill_(~visible_S_Q_K, float("-inf"))[:, None]


AttentionInterface.register(BRANCHING, attention)
AttentionMaskInterface.register(BRANCHING, sdpa_mask)
