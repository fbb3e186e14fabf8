"""Several adapters in one layer equal each of them alone: value and gradient, in both implementations."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from trainer_svc.model import batched_lora
from trainer_svc.model.batched_lora import (
    MAX_CACHED_INDICES,
    Part,
    ProductBuilder,
    _computes,
    _padded_index,
    builder_on,
    by_grouped_mm,
    by_loop,
)
from trainer_svc.model.lora import Layout, LoraLinear, LoraModule, attached

INPUTS, OUTPUTS = 24, 40
TOKENS = (5, 1, 16, 9)
RANKS: tuple[int | None, ...] = (3, 8, None, 16)
"""Rank of each part's adapter; None: the part does not change the layer."""
WAYS: tuple[ProductBuilder, ...] = (by_loop, by_grouped_mm)


def layer(*, bias: bool) -> LoraLinear:
    torch.manual_seed(0)
    return LoraLinear(nn.Linear(INPUTS, OUTPUTS, bias=bias).requires_grad_(False))


def parts(dtype: torch.dtype = torch.float32) -> tuple[list[Part], list[Tensor]]:
    """Parts of a forward, and the masters that receive the gradients."""
    generator = torch.Generator().manual_seed(1)
    found, masters = [], []
    for tokens, rank in zip(TOKENS, RANKS, strict=True):
        layout = Layout(rank or 5, 2.0, (LoraModule("own", INPUTS, OUTPUTS),) if rank else ())
        masters.append(torch.randn(layout.size, generator=generator).requires_grad_())
        found.append(Part(tokens, layout, masters[-1].to(dtype)))
    return found, masters


def forward(layer: LoraLinear, x: Tensor, parts: Sequence[Part], way: ProductBuilder) -> Tensor:
    with attached({"own": layer}, way(parts)):
        return layer(x)


def inputs() -> Tensor:
    return torch.randn(sum(TOKENS), INPUTS, generator=torch.Generator().manual_seed(2)).requires_grad_()


def gradients(masters: Sequence[Tensor]) -> list[Tensor]:
    return [master.grad for master in masters if master.numel() and master.grad is not None]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bias", [True, False])
def test_parts_equal_the_formula_by_plain_autograd(way: ProductBuilder, bias: bool) -> None:
    linear, (together, masters), (alone, plain_masters) = layer(bias=bias), parts(), parts()
    x, plain_x = inputs(), inputs()
    pull = torch.randn(sum(TOKENS), OUTPUTS, generator=torch.Generator().manual_seed(3))
    found = forward(linear, x, together, way)
    torch.autograd.backward((found * pull).sum())
    expected = []
    for rows, part in zip(plain_x.split(TOKENS), alone, strict=True):
        plain = nn.functional.linear(rows, linear.weight, linear.bias)
        pair = part.layout.views(part.vector).get("own")
        expected.append(plain + pair.scaling * (rows @ pair.a.t()) @ pair.b.t() if pair else plain)
    torch.autograd.backward((torch.cat(expected) * pull).sum())
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(x.grad, plain_x.grad, rtol=1e-5, atol=1e-4)
    assert len(gradients(masters)) == 3
    for one, other in zip(gradients(masters), gradients(plain_masters), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_half_precision_keeps_gradients_in_the_masters_precision(way: ProductBuilder) -> None:
    linear, found = layer(bias=False).bfloat16(), []
    for computed in (way, by_loop):
        given, masters = parts(torch.bfloat16)
        output = forward(linear, inputs().detach().bfloat16(), given, computed)
        torch.autograd.backward(output.float().square().sum())
        assert output.dtype == torch.bfloat16
        found.append(gradients(masters))
    assert {gradient.dtype for gradient in found[0]} == {torch.float32}
    for one, other in zip(*found, strict=True):
        assert torch.linalg.vector_norm(one - other) < 0.02 * torch.linalg.vector_norm(other)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_not_finite_in_one_part_changes_no_bit_of_another(way: ProductBuilder, number: float) -> None:
    linear, found, found_gradients = layer(bias=False), [], []
    for sick in (False, True):
        given, masters = parts()
        if sick:
            with torch.no_grad():
                masters[1][0] = number
        x = inputs()
        output = forward(linear, x, given, way)
        torch.autograd.backward(output.square().sum())
        assert x.grad is not None
        found.append((output.detach(), x.grad))
        found_gradients.append(gradients(masters))
    start, end = TOKENS[0], TOKENS[0] + TOKENS[1]
    for one, other in zip(*found, strict=True):
        assert not other[start:end].isfinite().all()
        assert torch.equal(one[:start], other[:start])
        assert torch.equal(one[end:], other[end:])
    equal = [torch.equal(one, other) for one, other in zip(*found_gradients, strict=True)]
    assert equal == [True, False, True]


@pytest.mark.parametrize(
    ("device", "dtype", "capability", "expected"),
    [
        ("cpu", torch.bfloat16, (9, 0), by_loop),
        ("cuda", torch.float32, (9, 0), by_loop),
        ("cuda", torch.bfloat16, (8, 0), by_loop),
        ("cuda", torch.bfloat16, (12, 0), by_loop),
        ("cuda", torch.bfloat16, (9, 0), by_grouped_mm),
    ],
)
@pytest.mark.parametrize("runs", [True, False])
def test_grouped_mm_is_chosen_where_it_has_a_kernel_that_runs(
    device: str, dtype: torch.dtype, capability: tuple[int, int], expected: ProductBuilder, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU is a stand-in. Elsewhere `grouped_mm` is a loop, too, which waits for the device in each product."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(batched_lora, "_computes", lambda _: runs)
    assert builder_on(torch.device(device), dtype) is (expected if runs else by_loop)


def test_grouped_mm_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Tensor, **__: Tensor) -> Tensor:
        raise RuntimeError("grouped mm is not supported on your system")

    assert _computes(torch.device("cpu"))
    monkeypatch.setattr(nn.functional, "grouped_mm", refuse)
    assert not _computes(torch.device("cpu"))


def test_what_is_remembered_of_filling_up_is_little() -> None:
    """A cached index takes twice its adapter's memory: none for an adapter that fits, one for all scales, a few in total."""
    module = (LoraModule("own", INPUTS, OUTPUTS),)

    def grouped(*ranks: int, alpha: float = 2.0) -> None:
        layouts = [Layout(rank, alpha, module) for rank in ranks]
        by_grouped_mm([Part(4, layout, torch.zeros(layout.size)) for layout in layouts])

    _padded_index.cache_clear()
    grouped(8, 8)
    assert _padded_index.cache_info().currsize == 0
    for alpha in (1.0, 2.0, 3.0):
        grouped(3, 8, alpha=alpha)
    assert _padded_index.cache_info().currsize == 1
    for rank in range(1, 40):
        grouped(rank, 40)
    assert _padded_index.cache_info().currsize == MAX_CACHED_INDICES <= 8
