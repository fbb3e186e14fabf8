"""Many adapters in one batch on a CPU: the numbers of each are those of a plain product, whatever company it has."""

from collections.abc import Sequence

import pytest
import torch
from vllm.lora.layers import LoRAMapping

from rollout_svc.engine.cpu.lora import LONG_RUN, GroupedLora
from tests.rollout.cpu.layers import IDS, INPUTS, RANK, SLOTS

OUTPUTS = (6, 2, 4)

Slices = tuple[torch.Tensor, ...]


def make_slices(outputs: Sequence[int]) -> tuple[Slices, Slices]:
    """Slices in vLLM's layout: A (S, 1, R, I) and B (S, 1, O, R) for each merged projection."""
    return (tuple(torch.randn(SLOTS, 1, RANK, INPUTS) for _ in outputs), tuple(torch.randn(SLOTS, 1, width, RANK) for width in outputs))


def plain(x: torch.Tensor, slots: Sequence[int], a_slices: Slices, b_slices: Slices) -> torch.Tensor:
    """Expected result, a row at a time."""
    rows: list[torch.Tensor] = []
    for row, slot in zip(x, slots, strict=True):
        parts = [torch.zeros(b.shape[2]) if slot < 0 else b[slot, 0] @ (a[slot, 0] @ row) for a, b in zip(a_slices, b_slices, strict=True)]
        rows.append(torch.cat(parts))
    return torch.stack(rows)


def batch_of(slots: Sequence[int]) -> GroupedLora:
    """A wrapper for a batch in which token i has the adapter in `slots[i]`, -1 for none."""
    wrapper = GroupedLora(256, 64, "cpu")
    ids = tuple(0 if slot < 0 else IDS[slot] or 0 for slot in slots)
    wrapper.update_metadata(LoRAMapping(index_mapping=ids, prompt_mapping=ids, is_prefill=True), IDS, SLOTS, 64)
    return wrapper


def added(wrapper: GroupedLora, x: torch.Tensor, a_slices: Slices, b_slices: Slices) -> torch.Tensor:
    y = torch.zeros(len(x), sum(b.shape[2] for b in b_slices))
    wrapper.add_lora_linear(y, x, a_slices, b_slices, 1.0, [b.shape[2] for b in b_slices])
    return y


BATCHES = {
    "sorted": [0, 0, 1, 3],
    "few runs": [3, 3, 0, 1, 1, 0],
    "few runs, some without": [1, -1, 0, -1, 1],
    "scattered": [3, 0, 1, 0, 3, 0, 1, 3, 3, 1],
    "scattered, some without": [1, -1, 0, 1, -1, 0, 1, 0, -1, 1, 0],
    "none": [-1, -1, -1],
    "one": [1],
    "long runs": [3] * LONG_RUN + [0] * (LONG_RUN + 5) + [3] * LONG_RUN,
    "long runs, some without": [-1] * 5 + [1] * (2 * LONG_RUN) + [-1] * 40 + [0] * LONG_RUN,
}


@pytest.mark.parametrize("outputs", [OUTPUTS, OUTPUTS[:1]], ids=["merged", "single"])
@pytest.mark.parametrize("slots", BATCHES.values(), ids=BATCHES.keys())
def test_each_row_gets_its_adapters_product(slots: list[int], outputs: tuple[int, ...]) -> None:
    a_slices, b_slices = make_slices(outputs)
    x = torch.randn(len(slots), INPUTS)
    expected = plain(x, slots, a_slices, b_slices)
    torch.testing.assert_close(added(batch_of(slots), x, a_slices, b_slices), expected, atol=1e-5, rtol=1e-5)


def test_a_batch_forgets_the_one_before() -> None:
    wrapper, (a_slices, b_slices) = batch_of(BATCHES["scattered"]), make_slices(OUTPUTS)
    for slots in (BATCHES["long runs"], BATCHES["none"], BATCHES["scattered"], BATCHES["scattered, some without"]):
        ids = tuple(0 if slot < 0 else IDS[slot] or 0 for slot in slots)
        wrapper.update_metadata(LoRAMapping(index_mapping=ids, prompt_mapping=ids, is_prefill=False), IDS, SLOTS, 64)
        x = torch.randn(len(slots), INPUTS)
        torch.testing.assert_close(added(wrapper, x, a_slices, b_slices), plain(x, slots, a_slices, b_slices), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("slots", [BATCHES["scattered"], BATCHES["long runs"]], ids=["scattered", "long runs"])
def test_weights_that_arrive_later_count(slots: list[int]) -> None:
    """vLLM writes a new adapter's weights into the slices that it made at the start, a smaller rank into a part of them."""
    a_slices, b_slices = make_slices(OUTPUTS)
    wrapper, x = batch_of(slots), torch.randn(len(slots), INPUTS)
    added(wrapper, x, a_slices, b_slices)
    for a, b in zip(a_slices, b_slices, strict=True):
        a[3], b[3] = 0, 0
        a[3, 0, : RANK - 1].copy_(torch.randn(RANK - 1, INPUTS))
        b[3, 0, :, : RANK - 1].copy_(torch.randn(b.shape[2], RANK - 1))
    torch.testing.assert_close(added(wrapper, x, a_slices, b_slices), plain(x, slots, a_slices, b_slices), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("slots", [BATCHES["scattered"], BATCHES["long runs"]], ids=["scattered", "long runs"])
def test_an_adapter_that_is_not_finite_spoils_only_its_own_rows(slots: list[int]) -> None:
    a_slices, b_slices = make_slices(OUTPUTS)
    for weights in (*a_slices, *b_slices):
        weights[3] = float("nan")
    y = added(batch_of(slots), torch.randn(len(slots), INPUTS), a_slices, b_slices)
    spoilt = y.isnan().any(dim=1)
    assert spoilt.tolist() == [slot == 3 for slot in slots]
