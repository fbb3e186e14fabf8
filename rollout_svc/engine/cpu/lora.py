"""LoRA for many adapters in one batch on a CPU.

vLLM's own CPU code gathers an adapter's weights once per token, and applies the adapter in the last slot to tokens without an adapter,
because it indexes with -1 (vLLM pull request 48421). Here the tokens of each adapter are multiplied by its weights together. Tokens without
an adapter are skipped, and no product mixes tokens and weights of two adapters.

On small models the number of calls decides. Projections that vLLM merges into one layer, such as queries, keys and values, are
therefore one adapter here: their A side by side, their B along a diagonal, which leaves two products and one addition a layer.
Runs of tokens of one adapter are multiplied in place. A batch in which an adapter's tokens are scattered over many
runs is sorted by adapter first. `torch.nn.functional.grouped_mm` would handle all adapters in one call, but on a CPU it visits every slot,
used or not: 170 µs a layer for four adapters, where separate products take 60 to 90.

In both ways a product is complete before it is added to the base model's: `addmm` adds in another order if N · R is 256 or more, so a
row's bits would depend on the batch. `InvariantLora` also pads runs of few tokens (`linear.Rows`).

Axes: T tokens that have an adapter, S adapter slots, R rank, N merged projections, I and O a layer's inputs and outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

from rollout_svc.engine.cpu.linear import ANY, Measured, Rows

LONG_RUN = 16
"""Mean run length in tokens from which runs are multiplied in place, however many there are."""
SORTING_COSTS = 3
"""Cost of sorting a small batch, in products of one run."""

Slices = tuple[torch.Tensor, ...]
TokenRun = tuple[int, int, int]
"""(slot, first token, end) of consecutive tokens with one adapter; `end` is exclusive."""


@dataclass(frozen=True)
class Weights:
    """Weights of one layer's adapters, by slot."""

    slices: Slices
    """A in vLLM's layout; kept alive so that its `id` is not reused."""
    a_I_R: Sequence[torch.Tensor]
    b_R_O: Sequence[torch.Tensor]
    a_rows: Rows
    b_rows: Rows

    def product(self, x_T_I: torch.Tensor, slot: int) -> torch.Tensor:
        """LoRA product of tokens with the adapter in `slot`: (T, I) → (T, O)."""
        inner_T_R = self.a_rows.compute(lambda part: torch.mm(part, self.a_I_R[slot]), x_T_I)
        return self.b_rows.compute(lambda part: torch.mm(part, self.b_R_O[slot]), inner_T_R)


class GroupedLora(PunicaWrapperCPU):
    """Replaces the LoRA of linear layers; the output layer and the embedding have no adapters here."""

    measured: Measured | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._layers: dict[int, Weights] = {}
        """Adapter weights by `id` of a layer's slices."""

    def update_metadata(self, mapping: Any, lora_index_to_id: list[int | None], max_loras: int, vocab_size: int, **_: Any) -> None:
        self._update_base_metadata(mapping, lora_index_to_id, max_loras, vocab_size)  # methods that are not replaced need it
        slots = self.token_lora_indices
        self._runs = _runs(slots)
        self._in_place = True
        adapters = len({slot for slot, _, _ in self._runs})
        if len(self._runs) <= adapters + SORTING_COSTS or len(slots) >= LONG_RUN * len(self._runs):
            return
        self._in_place = False
        ordered, order = torch.sort(slots, stable=True)
        without_adapter = int((ordered < 0).sum())
        self._rows_T = order[without_adapter:]
        self._runs = _runs(ordered[without_adapter:])
        self._places_T = torch.argsort(order) if without_adapter == 0 else None

    def add_lora_linear(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: Slices,
        lora_b_stacked: Slices,
        scale: float,
        output_slices: Sequence[int],  # noqa: ARG002  # B has the same widths
        **_: Any,
    ) -> None:
        """Add each row's adapter to `y`, in place.

        Shapes: y (rows, O); x (rows, I); per slice, A (S, 1, R, I) and B (S, 1, its O, R).
        """
        weights = self._layers.get(id(lora_a_stacked)) or self._side_by_side(lora_a_stacked, lora_b_stacked)
        x, y = x.view(-1, x.shape[-1]), y.view(-1, y.shape[-1])
        if self._in_place:
            for slot, begin, end in self._runs:
                y[begin:end].add_(weights.product(x[begin:end], slot), alpha=scale)
            return
        x_T_I = x.index_select(0, self._rows_T)
        out_T_O = torch.cat([weights.product(x_T_I[begin:end], slot) for slot, begin, end in self._runs])
        if self._places_T is not None:  # faster than adding at indices, but needs every row
            y[: len(out_T_O)].add_(out_T_O.index_select(0, self._places_T), alpha=scale)
        else:
            y.index_add_(0, self._rows_T, out_T_O, alpha=scale)

    def _side_by_side(self, a_slices: Slices, b_slices: Slices) -> Weights:
        """Merge a layer's slices into one adapter: A (S, N·R, I), B (S, O, N·R), zero between one slice's rank and another's output.

        vLLM's slices become views of the merged tensors, so that later writes of vLLM reach them.
        """
        a_S_R_I, b_S_O_R = a_slices[0][:, 0], b_slices[0][:, 0]
        if len(a_slices) > 1:
            a_S_R_I = torch.cat([a[:, 0] for a in a_slices], 1)
            outputs, ranks = sum(b.shape[2] for b in b_slices), a_S_R_I.shape[1]
            b_S_O_R = a_S_R_I.new_zeros(len(a_S_R_I), outputs, ranks)
            output = rank = 0
            for a, b in zip(a_slices, b_slices, strict=True):
                b_place = b_S_O_R[:, output : (output := output + b.shape[2]), rank : rank + a.shape[2]]
                b_place.copy_(b[:, 0])
                # Not `.data`: vLLM writes outside inference mode, where the merged tensors would not be writable.
                b.set_(b_place.unsqueeze(1))  # pyright: ignore[reportArgumentType]  # a tensor is a source too
                a.set_(a_S_R_I[:, rank : (rank := rank + a.shape[2])].unsqueeze(1))  # pyright: ignore[reportArgumentType]
        a_I_R, b_R_O = a_S_R_I.transpose(1, 2).unbind(0), b_S_O_R.transpose(1, 2).unbind(0)
        found = Weights(a_slices, a_I_R, b_R_O, self._allowed_rows(a_I_R[0]), self._allowed_rows(b_R_O[0]))
        self._layers[id(a_slices)] = found
        return found

    def _allowed_rows(self, weight: torch.Tensor) -> Rows:
        return self.measured.rows(torch.empty_like(weight).normal_()) if self.measured else ANY


class InvariantLora(GroupedLora):
    """A `GroupedLora` in which a row's bits do not depend on how many rows share its adapter."""

    measured = Measured()


def _runs(slots: torch.Tensor) -> list[TokenRun]:
    """Runs of consecutive tokens of one adapter; tokens without one (slot < 0) are left out."""
    found, lengths = torch.unique_consecutive(slots, return_counts=True)
    ends = lengths.cumsum(0)
    runs = zip(found.tolist(), (ends - lengths).tolist(), ends.tolist(), strict=True)
    return [run for run in runs if run[0] >= 0]
