"""The losses against liger-kernel's GRPO loss, which is itself tested against TRL's trainer."""

import numpy as np
import pytest
import torch
from liger_kernel.chunked_loss.grpo_loss import LigerFusedLinearGRPOFunction

from common.spec import Algorithm, Correction
from trainer_svc.algorithm.loss import Tokens, policy_loss, token_weights

LENGTHS = (7, 3, 1, 5)
MAX_TOKENS = 8
MASK_B_T = torch.arange(MAX_TOKENS) < torch.tensor(LENGTHS)[:, None]
NORMALIZE = {"dapo": "token", "grpo": "sequence", "dr_grpo": "constant"}
"""liger-kernel's names of the values of `algorithm.normalize`."""


def logprobs(seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(-2, 0.4, MASK_B_T.shape))


def ours(algorithm: Algorithm, correction: Correction, advantages_B: torch.Tensor, *, base: bool) -> tuple[torch.Tensor, torch.Tensor]:
    current_B_T = logprobs(1).requires_grad_()
    counts = torch.tensor(LENGTHS)
    tokens = Tokens(
        logprobs_N=current_B_T[MASK_B_T],
        sampler_logprobs_N=logprobs(2)[MASK_B_T],
        advantages_N=advantages_B.repeat_interleave(counts),
        weights_N=torch.tensor(token_weights(LENGTHS, algorithm.normalize, MAX_TOKENS), dtype=torch.float64).repeat_interleave(counts),
        sequence_N=torch.arange(len(LENGTHS)).repeat_interleave(counts),
        entropy_N=torch.zeros(sum(LENGTHS), dtype=torch.float64),
        start_logprobs_N=logprobs(3)[MASK_B_T],
        base_logprobs_N=logprobs(4)[MASK_B_T] if base else None,
    )
    loss = policy_loss(tokens, algorithm, correction).loss
    torch.autograd.backward(loss)
    assert current_B_T.grad is not None
    return loss.detach(), current_B_T.grad


def theirs(advantages_B: torch.Tensor, old_B_T: torch.Tensor, **options: object) -> tuple[torch.Tensor, torch.Tensor]:
    current_B_T = logprobs(1).requires_grad_()
    mask = MASK_B_T.double()
    loss, _ = LigerFusedLinearGRPOFunction.ppo_loss_fn(
        current_B_T, mask, advantages_B, mask, old_per_token_logps=old_B_T, max_completion_length=MAX_TOKENS, **options
    )
    torch.autograd.backward(loss)
    assert current_B_T.grad is not None
    return loss.detach(), current_B_T.grad


def assert_same(one: tuple[torch.Tensor, torch.Tensor], other: tuple[torch.Tensor, torch.Tensor]) -> None:
    for found, expected in zip(one, other, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert one[1].count_nonzero() > 0


@pytest.mark.parametrize("loss_type", NORMALIZE)
@pytest.mark.parametrize("kl_coefficient", [0.0, 0.3])
@pytest.mark.parametrize("loss", ["ppo", "gspo"])
def test_clipped_losses_and_kl_equal_ligers(loss: str, kl_coefficient: float, loss_type: str) -> None:
    algorithm = Algorithm.model_validate(
        {"loss": loss, "normalize": NORMALIZE[loss_type], "clip_low": 0.1, "clip_high": 0.3, "kl_coefficient": kl_coefficient}
    )
    advantages_B = torch.tensor([1.5, -0.7, 0.4, -1.1], dtype=torch.float64)
    assert_same(
        ours(algorithm, Correction(), advantages_B, base=kl_coefficient > 0),
        theirs(
            advantages_B,
            logprobs(2),
            loss_type=loss_type,
            importance_sampling_level="sequence" if loss == "gspo" else "token",
            epsilon_low=0.1,
            epsilon_high=0.3,
            beta=kl_coefficient,
            ref_per_token_logps=logprobs(4),
        ),
    )


def test_cispo_without_a_lower_bound_equals_ligers() -> None:
    algorithm = Algorithm.model_validate({"loss": "cispo", "clip_low": 1.0, "clip_high": 0.2})
    advantages_B = torch.tensor([1.5, -0.7, 0.4, -1.1], dtype=torch.float64)
    found = ours(algorithm, Correction(), advantages_B, base=False)
    assert_same(found, theirs(advantages_B, logprobs(2), loss_type="cispo", epsilon_high=1.2, beta=0.0))


def test_truncated_correction_from_sampler_to_start_equals_ligers() -> None:
    correction = Correction.model_validate({"proximal": "start", "truncate": 1.2})
    advantages_B = torch.tensor([1.5, -0.7, 0.4, -1.1], dtype=torch.float64)
    ratio_B_T = (logprobs(3) - logprobs(2)).exp()
    assert (ratio_B_T > 1.2).any()
    found = ours(Algorithm(clip_low=0.2, clip_high=0.28), correction, advantages_B, base=False)
    expected = theirs(
        advantages_B, logprobs(3), loss_type="dapo", epsilon_low=0.2, epsilon_high=0.28, beta=0.0, vllm_is_ratio=ratio_B_T.clamp(max=1.2)
    )
    assert_same(found, expected)
