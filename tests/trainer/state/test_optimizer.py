"""Functional AdamW, against torch's."""

import math

import pytest
import torch

from common.spec import Optimizer
from trainer_svc.state.optimizer import OptimizerState, adamw, clip, learning_rate


@pytest.mark.parametrize(
    "spec", [Optimizer(), Optimizer(learning_rate=0.03, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)], ids=["defaults", "all-different"]
)
def test_equals_torch_adamw(spec: Optimizer) -> None:
    generator = torch.Generator().manual_seed(0)
    params = torch.randn(64, generator=generator)
    oracle = torch.nn.Parameter(params.clone())
    torch_adamw = torch.optim.AdamW([oracle], lr=spec.learning_rate, betas=spec.betas, eps=spec.eps, weight_decay=spec.weight_decay)
    state = OptimizerState.fresh(params)
    for _ in range(6):
        gradient = torch.randn(64, generator=generator)
        oracle.grad = gradient.clone()
        torch_adamw.step()
        state = adamw(state, gradient, spec, spec.learning_rate)
    assert state.steps == 6
    torch.testing.assert_close(state.params, oracle.detach(), rtol=1e-5, atol=1e-7)


def test_a_step_leaves_the_old_state_as_it_was() -> None:
    before = OptimizerState(torch.ones(4), torch.full((4,), 0.5), torch.full((4,), 0.25), steps=3)
    after = adamw(before, torch.ones(4), Optimizer(weight_decay=0.1), 1e-3)
    assert (before.params.tolist(), before.exp_avg.tolist(), before.exp_avg_sq.tolist()) == ([1.0] * 4, [0.5] * 4, [0.25] * 4)
    assert before.steps == 3
    assert not torch.equal(after.params, before.params)


def test_gradient_is_scaled_down_to_the_norm_and_never_up() -> None:
    clipped, norm = clip(torch.tensor([3.0, 4.0]), 1.0)
    assert norm.item() == 5.0
    assert clipped.tolist() == pytest.approx([0.6, 0.8])
    untouched, _ = clip(torch.tensor([0.3, 0.4]), 1.0)
    assert untouched.tolist() == torch.tensor([0.3, 0.4]).tolist()
    assert clip(torch.zeros(2), 1.0)[0].tolist() == [0.0, 0.0]


def test_warmup_rises_in_equal_parts_and_then_stays() -> None:
    spec = Optimizer(learning_rate=0.4, warmup_steps=3)
    assert [learning_rate(spec, version, 100) for version in range(5)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    assert learning_rate(Optimizer(learning_rate=0.4), 0, 1) == 0.4


def test_schedules_fall_from_the_warm_up_to_the_final_share() -> None:
    linear = Optimizer(learning_rate=0.4, warmup_steps=1, schedule="linear", final_share=0.5)
    # 4 steps after the warm-up: a quarter of the way at each, and half of the rate to lose
    assert [learning_rate(linear, version, 5) for version in range(5)] == pytest.approx([0.2, 0.4, 0.35, 0.3, 0.25])
    cosine = Optimizer(learning_rate=0.4, schedule="cosine")
    half = math.sqrt(0.5) / 2
    assert [learning_rate(cosine, version, 4) for version in range(4)] == pytest.approx([0.4, 0.4 * (0.5 + half), 0.2, 0.4 * (0.5 - half)])
    only_warm_up = Optimizer(learning_rate=0.4, warmup_steps=9, schedule="cosine")
    assert learning_rate(only_warm_up, 2, 3) == pytest.approx(0.12)
