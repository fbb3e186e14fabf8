"""The output layer: in chunks, and its gradient against plain autograd's, in float32 and in bfloat16."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from trainer_svc.model.head import PART_ROWS, sampled_logprobs


class Largest(TorchDispatchMode):
    """Maximum elements of any tensor that an operation made."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for made in found if isinstance(found, tuple | list) else [found]:
            if isinstance(made, Tensor):
                self.elements = max(self.elements, made.numel())
        return found


@pytest.mark.parametrize("rows", [1, 5, 37])
@pytest.mark.parametrize("entropy_weight", [0.0, 0.7])
def test_logits_in_chunks_have_the_gradient_of_the_plain_path(rows: int, entropy_weight: float) -> None:
    tokens, vocabulary, width = 37, 301, 16
    torch.manual_seed(0)
    hidden_N_H, head_V_H = torch.randn(tokens, width), torch.randn(vocabulary, width)
    target_N, coefficients_N = torch.randint(vocabulary, (tokens,)), torch.randn(tokens)
    temperatures_N = torch.where(torch.arange(tokens) < 20, 0.7, 1.3)

    plain_N_H = hidden_N_H.double().requires_grad_()
    log_all = ((plain_N_H @ head_V_H.double().t()) / temperatures_N[:, None].double()).log_softmax(-1)
    expected_N, entropy_N = log_all.gather(1, target_N[:, None])[:, 0], -(log_all.exp() * log_all).sum(-1)
    torch.autograd.backward((expected_N * coefficients_N + entropy_weight * entropy_N).sum())

    chunked_N_H = hidden_N_H.clone().requires_grad_()
    with Largest() as largest:
        found_N, found_entropy_N = sampled_logprobs(
            chunked_N_H, head_V_H, target_N, temperatures_N, entropy_gradient=entropy_weight > 0, chunk_elements=rows * vocabulary
        )
        torch.autograd.backward((found_N * coefficients_N + entropy_weight * found_entropy_N).sum())
    assert plain_N_H.grad is not None
    assert chunked_N_H.grad is not None
    torch.testing.assert_close(found_N.double(), expected_N, rtol=0, atol=1e-5)
    torch.testing.assert_close(found_entropy_N.double(), entropy_N, rtol=0, atol=1e-5)
    rounding = 3e-6 * plain_N_H.grad.abs().max().item()
    torch.testing.assert_close(chunked_N_H.grad.double(), plain_N_H.grad, rtol=0, atol=rounding)
    assert largest.elements == max(rows * vocabulary, vocabulary * width)


# ------------------------------------------------------------------------------------------------------- rounding

TOKENS, VOCABULARY, WIDTH = 96, 8000, 256
CONFIDENCES = (0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999)
WORSE = 1.5
"""Maximum error as a multiple of autograd's."""


def rough_layer(confidence: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, weights, targets and temperatures in bfloat16, where each target has about this probability."""
    torch.manual_seed(0)
    head_V_H, target_N = (torch.randn(VOCABULARY, WIDTH) * 0.02).bfloat16(), torch.randint(VOCABULARY, (TOKENS,))
    temperatures_N = torch.where(torch.arange(TOKENS) % 2 == 0, 1.0, 0.7)
    others_N_H, own_N_H = torch.randn(TOKENS, WIDTH) * 0.5, head_V_H[target_N].float()
    rest_N = ((others_N_H.bfloat16() @ head_V_H.t()).float() / temperatures_N[:, None]).logsumexp(-1)
    missing_N = temperatures_N * (torch.tensor(confidence).logit() + rest_N) - (others_N_H * own_N_H).sum(-1)
    hidden_N_H = (others_N_H + own_N_H * (missing_N / own_N_H.square().sum(-1))[:, None]).bfloat16()
    return hidden_N_H, head_V_H, target_N, temperatures_N


def terms(logits_N_V: Tensor, target_N: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the targets, and entropies, as in the papers."""
    log_all = logits_N_V.log_softmax(-1)
    return log_all.gather(1, target_N[:, None])[:, 0], -(log_all.exp() * log_all).sum(-1)


def error(found_N_H: Tensor | None, expected_N_H: Tensor) -> float:
    """Median over tokens of the relative error."""
    assert found_N_H is not None
    return ((found_N_H.double() - expected_N_H).norm(dim=1) / expected_N_H.norm(dim=1)).median().item()


@pytest.mark.parametrize("term", ["log-probability", "entropy"])
@pytest.mark.parametrize("confidence", CONFIDENCES)
def test_gradient_in_bfloat16_is_as_exact_as_autograds(confidence: float, term: str) -> None:
    """Against float64 from the same rounded logits, so that only the way back differs."""
    hidden_N_H, head_V_H, target_N, temperatures_N = rough_layer(confidence)
    coefficients_N = torch.randn(TOKENS)
    place = ("log-probability", "entropy").index(term)

    plain_N_H = hidden_N_H.clone().requires_grad_()
    plain = terms(functional.linear(plain_N_H, head_V_H).float() / temperatures_N[:, None], target_N)
    assert plain[0].exp().median().item() == pytest.approx(confidence, rel=0.1)
    torch.autograd.backward((plain[place] * coefficients_N).sum())

    own_N_H = hidden_N_H.clone().requires_grad_()
    own = sampled_logprobs(own_N_H, head_V_H, target_N, temperatures_N, entropy_gradient=term == "entropy", chunk_elements=40 * VOCABULARY)
    torch.autograd.backward((own[place] * coefficients_N).sum())

    logits_N_V = functional.linear(hidden_N_H, head_V_H).double().requires_grad_()
    exact = terms(logits_N_V / temperatures_N[:, None], target_N)
    (slope_N_V,) = torch.autograd.grad((exact[place] * coefficients_N).sum(), logits_N_V)
    expected_N_H = slope_N_V @ head_V_H.double()
    assert error(own_N_H.grad, expected_N_H) <= WORSE * error(plain_N_H.grad, expected_N_H)


# --------------------------------------------------------------------------------------- float32 logits of a bfloat16 model


def exact_terms(hidden_N_H: Tensor, head_V_H: Tensor, target_N: Tensor, temperatures_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities and entropies in float64 from the rounded inputs, and the inputs that have their gradient."""
    wide_N_H = hidden_N_H.double().requires_grad_()
    return *terms((wide_N_H @ head_V_H.double().t()) / temperatures_N[:, None], target_N), wide_N_H


@pytest.mark.parametrize("confidence", CONFIDENCES[:-1])
def test_float32_logits_are_those_of_the_hidden_states_and_rounded_ones_are_not(confidence: float) -> None:
    layer = rough_layer(confidence)
    expected_N, expected_entropy_N, _ = exact_terms(*layer)
    found_N, entropy_N = sampled_logprobs(*layer, float32=True)
    rounded_N, _ = sampled_logprobs(*layer)
    torch.testing.assert_close(found_N.double(), expected_N.detach(), rtol=0, atol=2e-5)
    torch.testing.assert_close(entropy_N.double(), expected_entropy_N.detach(), rtol=0, atol=2e-4)
    assert (rounded_N - expected_N).abs().median() > 30 * (found_N - expected_N).abs().median()


@pytest.mark.parametrize("term", ["log-probability", "entropy"])
@pytest.mark.parametrize("confidence", CONFIDENCES)
def test_gradient_of_float32_logits_is_as_exact_as_autograds(confidence: float, term: str) -> None:
    """Both round once, to the hidden states' bfloat16; at 0.9999 float32 itself has 2 % of error left."""
    hidden_N_H, head_V_H, target_N, temperatures_N = rough_layer(confidence)
    coefficients_N, place = torch.randn(TOKENS), ("log-probability", "entropy").index(term)
    plain_N_H = hidden_N_H.clone().requires_grad_()
    plain = terms((plain_N_H.float() @ head_V_H.float().t()) / temperatures_N[:, None], target_N)
    torch.autograd.backward((plain[place] * coefficients_N).sum())
    own_N_H = hidden_N_H.clone().requires_grad_()
    own = sampled_logprobs(own_N_H, head_V_H, target_N, temperatures_N, entropy_gradient=place == 1, float32=True)
    torch.autograd.backward((own[place] * coefficients_N).sum())
    *exact, wide_N_H = exact_terms(hidden_N_H, head_V_H, target_N, temperatures_N)
    torch.autograd.backward((exact[place] * coefficients_N).sum())
    assert wide_N_H.grad is not None
    assert own_N_H.grad is not None
    assert own_N_H.grad.dtype == torch.bfloat16
    assert error(own_N_H.grad, wide_N_H.grad) <= WORSE * error(plain_N_H.grad, wide_N_H.grad) < 0.03


def test_float32_copy_of_the_weight_exists_in_parts() -> None:
    torch.manual_seed(0)
    tokens, vocabulary, width = 3, 2 * PART_ROWS + 5, 16
    hidden_N_H, head_V_H = torch.randn(tokens, width).bfloat16(), torch.randn(vocabulary, width).bfloat16()
    target_N, temperatures_N = torch.tensor([0, PART_ROWS, vocabulary - 1]), torch.ones(tokens)
    own_N_H = hidden_N_H.clone().requires_grad_()
    with Largest() as largest:
        found_N, _ = sampled_logprobs(own_N_H, head_V_H, target_N, temperatures_N, float32=True)
        torch.autograd.backward(found_N.sum())
    assert largest.elements <= PART_ROWS * width
    expected_N, _, wide_N_H = exact_terms(hidden_N_H, head_V_H, target_N, temperatures_N)
    torch.autograd.backward(expected_N.sum())
    assert own_N_H.grad is not None
    assert wide_N_H.grad is not None
    torch.testing.assert_close(found_N.double(), expected_N, rtol=0, atol=2e-5)
    torch.testing.assert_close(own_N_H.grad.double(), wide_N_H.grad, rtol=0.01, atol=1e-3)


def test_float32_model_has_the_same_bits_either_way() -> None:
    torch.manual_seed(0)
    hidden_N_H, head_V_H = torch.randn(5, 16), torch.randn(301, 16)
    grads: list[Tensor] = []
    for float32 in (False, True):
        own_N_H = hidden_N_H.clone().requires_grad_()
        found = sampled_logprobs(own_N_H, head_V_H, torch.arange(5), torch.ones(5), entropy_gradient=True, float32=float32)
        torch.autograd.backward((found[0] + found[1]).sum())
        assert own_N_H.grad is not None
        grads += [torch.cat([*found, own_N_H.grad.flatten()])]
    assert torch.equal(*grads)
