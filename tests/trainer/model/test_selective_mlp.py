"""The last layer's MLP computes the selected tokens only. test_policy.py tests that scores and gradients stay."""

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from trainer_svc.model.layers import SelectiveMLP, select_in_last_mlp


class Doubled(nn.Module):
    """Module that records how many tokens it received."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.tokens.append(x[..., 0].numel())
        return 2 * x


def test_only_wanted_tokens_are_computed_and_only_within_the_block() -> None:
    inner = Doubled()
    selective, x_B_T_H = SelectiveMLP(inner), torch.randn(2, 3, 4, requires_grad=True)
    with selective.only(torch.tensor([1, 3, 5])):
        found_B_T_H = selective(x_B_T_H)
    wanted_B_T_1 = torch.tensor([[0, 1, 0], [1, 0, 1]])[..., None]
    assert torch.equal(found_B_T_H, 2 * x_B_T_H * wanted_B_T_1)
    (gradient_B_T_H,) = torch.autograd.grad(found_B_T_H.sum(), x_B_T_H)
    assert torch.equal(gradient_B_T_H, (2.0 * wanted_B_T_1).expand(2, 3, 4))
    assert torch.equal(selective(x_B_T_H), 2 * x_B_T_H)
    assert inner.tokens == [3, 6]


def test_the_last_layers_mlp_is_found(model_folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    last = model.model.layers[-1]
    found = select_in_last_mlp(model)
    assert found
    assert found[0] is last.mlp
    assert found[1] == tuple(f"model.layers.{len(model.model.layers) - 1}.mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj"))


def test_an_expert_is_not_taken_for_an_mlp() -> None:
    mlp = nn.ModuleDict({"experts": nn.ModuleList([nn.ModuleDict({"down_proj": nn.Linear(2, 2)})])})
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.ModuleDict({"mlp": mlp})])})
    assert select_in_last_mlp(model) is None
    assert select_in_last_mlp(nn.ModuleDict({"down_proj": nn.Linear(2, 2)})) is None
