"""Several adapters in one layer equal each of them alone: value and gradient, whichever way they are multiplied."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from trainer_svc.grouped import GroupedMmProduct, GroupedProduct, LoopedProduct
from trainer_svc.lora import LoraLinear, Pair, Part, attached

INPUTS, OUTPUTS = 24, 40
TOKENS = (5, 1, 16, 9)
RANKS: tuple[int | None, ...] = (3, 8, None, 16)
"""None: this part leaves the layer as it is."""
PRODUCTS: tuple[GroupedProduct, ...] = (LoopedProduct, GroupedMmProduct)


def layer(*, bias: bool) -> LoraLinear:
    torch.manual_seed(0)
    return LoraLinear(nn.Linear(INPUTS, OUTPUTS, bias=bias).requires_grad_(False))


def pairs() -> list[Pair | None]:
    generator = torch.Generator().manual_seed(1)
    return [
        Pair(
            torch.randn(rank, INPUTS, generator=generator).requires_grad_(),
            torch.randn(OUTPUTS, rank, generator=generator).requires_grad_(),
            scaling=2 / rank,
        )
        if rank
        else None
        for rank in RANKS
    ]


def forward(layer: LoraLinear, x: Tensor, pairs: Sequence[Pair | None], tokens: Sequence[int], product: GroupedProduct) -> Tensor:
    parts = [Part(count, {"own": pair} if pair else {}) for count, pair in zip(tokens, pairs, strict=True)]
    with attached({"own": layer}, parts, product):
        return layer(x)


def gradients(pairs: Sequence[Pair | None]) -> list[Tensor]:
    return [matrix.grad for pair in pairs if pair for matrix in (pair.a, pair.b) if matrix.grad is not None]


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("bias", [True, False])
def test_parts_equal_the_formula_by_plain_autograd(product: GroupedProduct, bias: bool) -> None:
    linear, together, alone = layer(bias=bias), pairs(), pairs()
    x = torch.randn(sum(TOKENS), INPUTS, generator=torch.Generator().manual_seed(2)).requires_grad_()
    pull = torch.randn(sum(TOKENS), OUTPUTS, generator=torch.Generator().manual_seed(3))
    found = forward(linear, x, together, TOKENS, product)
    torch.autograd.backward((found * pull).sum())
    found_grad_x, x.grad = x.grad, None
    expected = []
    for part, pair in zip(x.split(TOKENS), alone, strict=True):
        plain = nn.functional.linear(part, linear.weight, linear.bias)
        expected.append(plain + pair.scaling * (part @ pair.a.t()) @ pair.b.t() if pair else plain)
    torch.autograd.backward((torch.cat(expected) * pull).sum())
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found_grad_x, x.grad, rtol=1e-5, atol=1e-4)
    assert len(gradients(together)) == 6
    for one, other in zip(gradients(together), gradients(alone), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("product", PRODUCTS)
def test_half_precision_keeps_gradients_in_the_masters_precision(product: GroupedProduct) -> None:
    linear, given = layer(bias=False).bfloat16(), pairs()
    x = torch.randn(sum(TOKENS), INPUTS, generator=torch.Generator().manual_seed(2)).bfloat16()
    found = forward(linear, x, given, TOKENS, product)
    torch.autograd.backward(found.float().square().sum())
    assert found.dtype == torch.bfloat16
    assert {gradient.dtype for gradient in gradients(given)} == {torch.float32}
    reference = pairs()
    plain = forward(linear, x, reference, TOKENS, LoopedProduct)
    torch.autograd.backward(plain.float().square().sum())
    for one, other in zip(gradients(given), gradients(reference), strict=True):
        assert torch.linalg.vector_norm(one - other) < 0.02 * torch.linalg.vector_norm(other)


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_not_finite_in_one_part_changes_no_bit_of_another(product: GroupedProduct, number: float) -> None:
    linear, sane, sick = layer(bias=False), pairs(), pairs()
    assert sick[1] is not None
    with torch.no_grad():
        sick[1].a[0, 0] = number
    found = []
    for given in (sane, sick):
        x = torch.randn(sum(TOKENS), INPUTS, generator=torch.Generator().manual_seed(2)).requires_grad_()
        output = forward(linear, x, given, TOKENS, product)
        torch.autograd.backward(output.square().sum())
        assert x.grad is not None
        found.append((output.detach(), x.grad))
    start, end = TOKENS[0], TOKENS[0] + TOKENS[1]
    for one, other in zip(*found, strict=True):
        assert not other[start:end].isfinite().all()
        assert torch.equal(one[:start], other[:start])
        assert torch.equal(one[end:], other[end:])
    for index, (one, other) in enumerate(zip(gradients(sane), gradients(sick), strict=True)):
        assert torch.equal(one, other) != (index in (2, 3))
