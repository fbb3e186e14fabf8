"""Many adapters in one batch on a CPU.

vLLM's own code for CPUs gathers an adapter's weights once for every token, and gives tokens without an adapter the one in
the last slot, because it indexes with -1 (vLLM pull request 48421). Here each adapter's tokens are multiplied by its weights
together. Tokens without an adapter take no part, and no number of one adapter meets a token of another.

On small models the number of calls decides. Projections that vLLM merges into one layer, such as queries, keys and values, are
therefore one adapter here: their A side by side, their B along a diagonal, which leaves two products and one addition a layer.
A batch of few long stretches, each of one adapter, as prompts make it, is multiplied stretch by stretch where it lies; any other
is sorted by adapter once an engine step.

Axes: T tokens that have an adapter, S adapter slots, R rank, N merged projections, I and O a layer's inputs and outputs.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import grouped_mm
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

LONG_STRETCH = 16
"""Tokens: from this mean on, stretches are multiplied one by one."""

Slices = tuple[torch.Tensor, ...]


class GroupedLora(PunicaWrapperCPU):
    """Replaces the linear layers' part; the engine's output layer and embedding have no adapters here."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._merged: dict[int, tuple[Slices, torch.Tensor, torch.Tensor]] = {}
        """By a layer's slices: they themselves, A (S, N·R, I), B (S, O, N·R)."""

    def update_metadata(self, mapping: Any, lora_index_to_id: list[int | None], max_loras: int, vocab_size: int, **_: Any) -> None:
        self._update_base_metadata(mapping, lora_index_to_id, max_loras, vocab_size)  # the rest serves the methods that are replaced
        slots = self.token_lora_indices
        self._stretches = _stretches(slots)
        if len(slots) >= LONG_STRETCH * len(self._stretches):
            self._rows_T = slots.new_empty(0)
            return
        self._stretches = []
        ordered, order = torch.sort(slots, stable=True)
        without_adapter = int((ordered < 0).sum())
        self._rows_T = order[without_adapter:]
        self._ends_S = torch.bincount(ordered[without_adapter:], minlength=len(lora_index_to_id)).cumsum(0).to(torch.int32)
        self._is_sorted = without_adapter == 0 and bool((slots[1:] >= slots[:-1]).all())
        self._places_T = torch.argsort(order) if without_adapter == 0 else None

    def add_lora_linear(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: Slices,
        lora_b_stacked: Slices,
        scale: float,
        output_slices: Sequence[int],  # noqa: ARG002  # their widths, which B has too
        **_: Any,
    ) -> None:
        """Add each row's adapter to `y`, in place.

        Shapes: y (rows, O); x (rows, I); per slice, A (S, 1, R, I) and B (S, 1, its O, R).
        """
        a_S_R_I, b_S_O_R = self._side_by_side(lora_a_stacked, lora_b_stacked)
        x, y = x.view(-1, x.shape[-1]), y.view(-1, y.shape[-1])
        if self._stretches:
            for slot, begin, end in self._stretches:
                y[begin:end].addmm_(torch.mm(x[begin:end], a_S_R_I[slot].t()), b_S_O_R[slot].t(), alpha=scale)
            return
        if len(self._rows_T) == 0:
            return
        x_T_I = x[: len(self._rows_T)] if self._is_sorted else x.index_select(0, self._rows_T)
        h_T_R = grouped_mm(x_T_I, a_S_R_I.transpose(1, 2), offs=self._ends_S)
        out_T_O = grouped_mm(h_T_R, b_S_O_R.transpose(1, 2), offs=self._ends_S)
        if scale != 1.0:
            out_T_O *= scale
        if self._is_sorted:
            y[: len(out_T_O)] += out_T_O
        elif self._places_T is not None:  # faster than adding at indices, but needs every row
            y[: len(out_T_O)] += out_T_O.index_select(0, self._places_T)
        else:
            y.index_add_(0, self._rows_T, out_T_O)

    def _side_by_side(self, a_slices: Slices, b_slices: Slices) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer's slices as one adapter: A (S, N·R, I), B (S, O, N·R), zero between one slice's rank and another's output.

        The slices move into them when they are first seen, and so what vLLM writes into a slice is written here.
        """
        if len(a_slices) == 1:
            return a_slices[0][:, 0], b_slices[0][:, 0]
        known = self._merged.get(id(a_slices))
        if known is not None:
            return known[1], known[2]
        a_S_R_I = torch.cat([a[:, 0] for a in a_slices], 1)
        outputs, ranks = sum(b.shape[2] for b in b_slices), a_S_R_I.shape[1]
        b_S_O_R = a_S_R_I.new_zeros(len(a_S_R_I), outputs, ranks)
        output = rank = 0
        for a, b in zip(a_slices, b_slices, strict=True):
            b_place = b_S_O_R[:, output : (output := output + b.shape[2]), rank : rank + a.shape[2]]
            b_place.copy_(b[:, 0])
            # Not `.data`: vLLM writes outside of inference mode, where the merged ones could not be written.
            b.set_(b_place.unsqueeze(1))  # pyright: ignore[reportArgumentType]  # a tensor is a source too
            a.set_(a_S_R_I[:, rank : (rank := rank + a.shape[2])].unsqueeze(1))  # pyright: ignore[reportArgumentType]
        self._merged[id(a_slices)] = (a_slices, a_S_R_I, b_S_O_R)
        return a_S_R_I, b_S_O_R


def _stretches(slots: torch.Tensor) -> list[tuple[int, int, int]]:
    """(slot, begin, end) of each run of neighbouring tokens of one adapter; tokens without one (slot < 0) are left out."""
    found, lengths = torch.unique_consecutive(slots, return_counts=True)
    ends = lengths.cumsum(0)
    runs = zip(found.tolist(), (ends - lengths).tolist(), ends.tolist(), strict=True)
    return [run for run in runs if run[0] >= 0]
