"""A row of a product has the same bits, whatever the number of rows beside it."""

from collections.abc import Callable

import pytest
import torch
from vllm.lora.layers import LoRAMapping

from rollout_svc.engine.cpu import linear
from rollout_svc.engine.cpu.linear import CHUNK, Measured, Product, Rows, allowed_rows
from rollout_svc.engine.cpu.lora import InvariantLora
from tests.rollout.cpu.layers import IDS, SLOTS, layer_with

NUMBERS = [*range(1, 40), 63, 64, 65, 100, 200]


def product_with(error: Callable[[int], float]) -> Product:
    """A product whose rows are off by an error that depends on their number."""
    return lambda x_n_I: x_n_I * 2 + error(len(x_n_I))


SETTLING: dict[str, tuple[Callable[[int], float], Rows]] = {
    "at once": (lambda _: 0.0, Rows(1)),
    "from 4 rows on": (lambda n: float(n < 4), Rows(4)),
    "from 12 rows on": (lambda n: float(n < 12 and n % 4 != 0), Rows(12)),
    "too late": (lambda n: float(n < 40), Rows(CHUNK, is_maximum=True)),
    "never": (lambda n: float(n % 3), Rows(CHUNK, is_maximum=True)),
}


@pytest.mark.parametrize(("error", "expected"), SETTLING.values(), ids=SETTLING.keys())
def test_products_get_numbers_of_rows_with_which_a_rows_bits_are_equal(error: Callable[[int], float], expected: Rows) -> None:
    product = product_with(error)
    rows = allowed_rows(product, 3)
    assert rows == expected
    x_n_I = torch.randn(200, 3)
    whole = rows.compute(product, x_n_I)
    assert whole.shape == (200, 3)
    assert [n for n in NUMBERS if not torch.equal(rows.compute(product, x_n_I[:n]), whole[:n])] == []


def test_shapes_are_measured_once_each() -> None:
    measured = Measured()
    weight = torch.randn(8, 6)
    rows = measured.rows(weight)
    assert measured.rows(torch.zeros(8, 6)) is rows  # zeros would settle at once: they are not measured
    assert measured.rows(torch.randn(6, 8).t()) is not rows  # another layout, perhaps another kernel
    assert measured.rows(weight.bfloat16()) is not rows


@pytest.mark.parametrize("is_embedding", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(128, 256), (384, 128), (128, 576), (1024, 512)])
def test_rows_of_a_layer_do_not_depend_on_their_number(inputs: int, outputs: int, is_embedding: bool) -> None:
    layer = layer_with(torch.randn(outputs, inputs))
    linear.prepare(layer, remove_weight=not is_embedding, measured=Measured())
    x_n_I, bias = torch.randn(200, inputs), torch.randn(outputs)
    for given in (None, bias):
        whole = layer.cpu_linear(x_n_I, layer.weight, given)
        assert [n for n in NUMBERS if not torch.equal(layer.cpu_linear(x_n_I[:n], layer.weight, given), whole[:n])] == []


@pytest.mark.parametrize("rank", [8, 128])
def test_rows_of_an_adapter_do_not_depend_on_their_batch(rank: int) -> None:
    """Rank 128 of three merged projections is where products that are added while they are computed have other bits."""
    outputs, inputs, tokens = (64, 32, 32), 128, 40
    a_slices = tuple(torch.randn(SLOTS, 1, rank, inputs) for _ in outputs)
    b_slices = tuple(torch.randn(SLOTS, 1, width, rank) for width in outputs)
    x_T_I, y_T_O = torch.randn(tokens, inputs), torch.randn(tokens, sum(outputs))
    wrapper = InvariantLora(256, 64, "cpu")

    def added(places: list[int], slots: list[int]) -> dict[int, torch.Tensor]:
        """Rows by their place, of tokens at `places`, each with the adapter in its slot."""
        ids = tuple(IDS[slot] or 0 for slot in slots)
        wrapper.update_metadata(LoRAMapping(index_mapping=ids, prompt_mapping=ids, is_prefill=True), IDS, SLOTS, 64)
        y = y_T_O[places]
        wrapper.add_lora_linear(y, x_T_I[places], a_slices, b_slices, 1.0, outputs)
        return dict(zip(places, y, strict=True))

    slots = [(0, 1, 3)[place % 3] for place in range(tokens)]
    scattered = added(list(range(tokens)), slots)
    ordered = sorted(range(tokens), key=lambda place: slots[place])
    companies = [ordered, *([place] for place in range(tokens)), *(ordered[begin : begin + 3] for begin in range(0, tokens, 3))]
    for places in companies:
        found = added(places, [slots[place] for place in places])
        assert [place for place, row in found.items() if not torch.equal(row, scattered[place])] == []
