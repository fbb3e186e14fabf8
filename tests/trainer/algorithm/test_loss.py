"""The loss and its gradient, against numbers computed by hand, and against formulas in plain Python.

Neither TRL nor verl is installed: the plain formulas are written here from the papers, token by token, without torch.
Their gradients are central differences, so a surrogate with a detached factor is compared with that factor held fixed.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from common.spec import Algorithm, Correction
from trainer_svc.algorithm.loss import LossTerms, Tokens, policy_loss, token_weights

SAMPLER = -2.0
PPO = Algorithm(clip_low=0.2, clip_high=0.5)


def tokens_of(log_ratios: list[float], advantages: list[float], weights: list[float], **more: Any) -> Tokens:
    count = len(log_ratios)
    tokens = Tokens(
        logprobs_N=(SAMPLER + torch.tensor(log_ratios)).requires_grad_(),
        sampler_logprobs_N=torch.full((count,), SAMPLER),
        advantages_N=torch.tensor(advantages),
        weights_N=torch.tensor(weights),
        sequence_N=torch.zeros(count, dtype=torch.int64),
        entropy_N=torch.zeros(count),
    )
    return replace(tokens, **more)


def gradient_of(tokens: Tokens, algorithm: Algorithm = PPO, correction: Correction | None = None) -> tuple[LossTerms, list[float]]:
    terms = policy_loss(tokens, algorithm, correction or Correction())
    terms.loss.backward()
    assert tokens.logprobs_N.grad is not None
    return terms, tokens.logprobs_N.grad.tolist()


def loss_of(log_ratios: list[float], advantages: list[float], weights: list[float], **more: Any) -> tuple[LossTerms, list[float]]:
    return gradient_of(tokens_of(log_ratios, advantages, weights), **more)


@pytest.mark.parametrize("loss", ["ppo", "gspo", "reinforce"])
@pytest.mark.parametrize("proximal", ["sampler", "start"])
def test_on_policy_token_has_ratio_one_and_the_plain_gradient(loss: str, proximal: str) -> None:
    algorithm = PPO.model_copy(update={"loss": loss})
    correction = Correction.model_validate({"proximal": proximal})
    tokens = tokens_of([0.0, 0.0], [2.0, -1.0], [0.5, 0.25], sequence_N=torch.tensor([0, 1]))
    terms, gradient = gradient_of(tokens, algorithm, correction)
    assert terms.loss.item() == pytest.approx(-(0.5 * 2.0 + 0.25 * -1.0))
    assert gradient == pytest.approx([-0.5 * 2.0, 0.25 * 1.0])  # −w·A·ρ
    assert terms.log_ratio_N.tolist() == [0.0, 0.0]
    assert not terms.clipped_N.any()


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "slope", "clipped"),
    [
        (1.4, 1.0, 1.4, 1.4, False),  # better, within the wider upper bound
        (2.0, 1.0, 1.5, 0.0, True),  # better, beyond it: no more pull
        (0.5, 1.0, 0.5, 0.5, False),  # better but made rarer: pulled back, unclipped
        (0.9, -1.0, -0.9, -0.9, False),  # worse, within the lower bound
        (0.5, -1.0, -0.8, 0.0, True),  # worse and rare enough
        (2.0, -1.0, -2.0, -2.0, False),  # worse but made likelier: pushed down with full force
    ],
)
def test_each_region_of_the_clip(ratio: float, advantage: float, value: float, slope: float, clipped: bool) -> None:
    weight = 0.25
    terms, gradient = loss_of([math.log(ratio)], [advantage], [weight])
    assert terms.loss.item() == pytest.approx(-weight * value, rel=1e-5)
    assert gradient == pytest.approx([-weight * slope], rel=1e-5)
    assert terms.clipped_N.tolist() == [clipped]


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "slope", "clipped"),
    [
        (2.0, -1.0, -2.0, -2.0, False),  # below the dual bound
        (4.0, -1.0, -3.0, 0.0, True),  # beyond it: pushed no further
        (4.0, 1.0, 1.5, 0.0, True),  # better: the ordinary clip
        (0.5, -1.0, -0.8, 0.0, True),
    ],
)
def test_dual_clip_bounds_the_push_on_what_did_worse(ratio: float, advantage: float, value: float, slope: float, clipped: bool) -> None:
    terms, gradient = loss_of([math.log(ratio)], [advantage], [1.0], algorithm=PPO.model_copy(update={"dual_clip": 3.0}))
    assert terms.loss.item() == pytest.approx(-value, rel=1e-5)
    assert gradient == pytest.approx([-slope], rel=1e-5)
    assert terms.clipped_N.tolist() == [clipped]


@pytest.mark.parametrize(("ratio", "bounded", "clipped"), [(1.2, 1.2, False), (3.0, 1.5, True), (0.1, 0.8, True)])
@pytest.mark.parametrize("advantage", [2.0, -1.0])
def test_cispo_bounds_the_weight_and_keeps_the_gradient(ratio: float, bounded: float, clipped: bool, advantage: float) -> None:
    terms, gradient = loss_of([math.log(ratio)], [advantage], [0.5], algorithm=PPO.model_copy(update={"loss": "cispo"}))
    assert terms.loss.item() == pytest.approx(-0.5 * bounded * advantage * (SAMPLER + math.log(ratio)), rel=1e-5)
    assert gradient == pytest.approx([-0.5 * bounded * advantage], rel=1e-5)
    assert terms.clipped_N.tolist() == [clipped]


def test_gspo_gives_a_sequence_one_ratio_and_clips_it_whole() -> None:
    """Sequence 0: ratios 2 and 1/2, whose geometric mean is 1. Sequence 1: ratios 4 and 1, so 2, beyond the bound of 1.5."""
    tokens = tokens_of(
        [math.log(2), math.log(0.5), math.log(4), 0.0], [1.0, 1.0, 1.0, 1.0], [0.25] * 4, sequence_N=torch.tensor([0, 0, 1, 1])
    )
    terms, gradient = gradient_of(tokens, PPO.model_copy(update={"loss": "gspo"}))
    assert terms.loss.item() == pytest.approx(-(0.25 * 2 * 1.0 + 0.25 * 2 * 1.5), rel=1e-5)
    # each token moves the sequence's ratio by half of it, in two tokens' terms: 2 · w · s · A / 2
    assert gradient == pytest.approx([-0.25, -0.25, 0.0, 0.0], abs=1e-6)
    assert terms.clipped_N.tolist() == [False, False, True, True]


def test_reinforce_weighs_by_the_whole_ratio() -> None:
    terms, gradient = loss_of([math.log(5), math.log(0.1)], [1.0, -2.0], [0.5, 1.0], algorithm=PPO.model_copy(update={"loss": "reinforce"}))
    assert terms.loss.item() == pytest.approx(-(0.5 * 5 - 2 * 0.1), rel=1e-5)
    assert gradient == pytest.approx([-0.5 * 5, 2 * 0.1], rel=1e-5)
    assert not terms.clipped_N.any()


def test_way_from_the_sampler_to_the_start_is_a_truncated_weight_without_gradient() -> None:
    """Start and current are one policy: the surrogate's ratio is 1, and the sampler's difference only weighs."""
    terms, gradient = loss_of(
        [math.log(1.5), math.log(8), math.log(0.1)], [1.0, 1.0, -1.0], [1.0] * 3, correction=Correction(proximal="start", truncate=2)
    )
    assert terms.loss.item() == pytest.approx(-(1.5 + 2.0 - 0.1), rel=1e-5)
    assert gradient == pytest.approx([-1.5, -2.0, 0.1], rel=1e-5)
    assert not terms.clipped_N.any()
    assert terms.log_ratio_N.exp().tolist() == pytest.approx([1.5, 8, 0.1], rel=1e-5)


def test_clip_is_around_the_start_of_the_step_when_that_is_proximal() -> None:
    """Sampler → start ×1.25; start → current ×1.6, beyond 1.5: the value is 1.25 · 1.5, and nothing pulls."""
    start = torch.tensor([SAMPLER + math.log(1.25)])
    tokens = tokens_of([math.log(1.25 * 1.6)], [1.0], [1.0], start_logprobs_N=start)
    terms, gradient = gradient_of(tokens, PPO, Correction(proximal="start"))
    assert terms.loss.item() == pytest.approx(-1.25 * 1.5, rel=1e-5)
    assert gradient == [0.0]
    assert terms.clipped_N.tolist() == [True]


@pytest.mark.parametrize("proximal", ["sampler", "start"])
def test_tokens_beyond_the_mask_are_left_out(proximal: str) -> None:
    correction = Correction.model_validate({"proximal": proximal, "mask_low": 0.5, "mask_high": 2.0, "truncate": 100})
    terms, gradient = loss_of([math.log(0.4), math.log(1.2), math.log(2.5)], [1.0] * 3, [1.0] * 3, correction=correction)
    assert terms.masked_N.tolist() == [True, False, True]
    assert terms.loss.item() == pytest.approx(-1.2, rel=1e-5)
    assert gradient == pytest.approx([0.0, -1.2, 0.0], rel=1e-5)
    assert not terms.clipped_N.any()


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [("k1", math.log(2), 1.0), ("k2", math.log(2) ** 2 / 2, math.log(2)), ("k3", 0.5 - 1 + math.log(2), 1 - 0.5)],
)
def test_pull_towards_the_base_model(estimator: str, value: float, slope: float) -> None:
    """π is twice as likely as the base model: d = log 2, exp(−d) = 1/2."""
    algorithm = PPO.model_copy(update={"kl_coefficient": 0.1, "kl_estimator": estimator})
    tokens = tokens_of([0.0], [0.0], [0.5], base_logprobs_N=torch.tensor([SAMPLER - math.log(2)]))
    terms, gradient = gradient_of(tokens, algorithm)
    assert terms.loss.item() == pytest.approx(0.1 * 0.5 * value, rel=1e-5)
    assert gradient == pytest.approx([0.1 * 0.5 * slope], rel=1e-5)
    assert terms.kl_base_N.tolist() == pytest.approx([0.5 - 1 + math.log(2)], rel=1e-5)


def test_entropy_is_rewarded_by_its_coefficient() -> None:
    entropy = torch.tensor([3.0, 1.0], requires_grad=True)
    tokens = tokens_of([0.0, 0.0], [0.0, 0.0], [0.5, 0.25], entropy_N=entropy)
    terms, _ = gradient_of(tokens, PPO.model_copy(update={"entropy_coefficient": 0.2}))
    assert terms.loss.item() == pytest.approx(-0.2 * (0.5 * 3 + 0.25 * 1))
    assert entropy.grad is not None
    assert entropy.grad.tolist() == pytest.approx([-0.1, -0.05])


def test_absurd_ratio_stays_finite() -> None:
    terms, gradient = loss_of([500.0], [-1.0], [1.0])
    assert terms.loss.item() == pytest.approx(math.exp(20), rel=1e-4)
    assert gradient == [0.0]


def test_weights_follow_the_named_rule() -> None:
    assert token_weights([4, 1, 3], "token", 10) == [1 / 8, 1 / 8, 1 / 8]
    assert token_weights([4, 1], "sequence", 10) == [1 / 8, 1 / 2]
    assert token_weights([4, 1], "constant", 10) == [1 / 20, 1 / 20]
    assert token_weights([4, 0], "sequence", 10) == [1 / 8, 0.0]


SEQUENCES = [0, 0, 0, 1, 1, 2, 2, 2, 2]
Objective = Callable[[list[float], list[float], list[float], list[float]], float]


def clip(value: float, algorithm: Algorithm) -> float:
    return max(1 - algorithm.clip_low, min(1 + algorithm.clip_high, value))


def plain_ppo(algorithm: Algorithm) -> Objective:
    def objective(current: list[float], proximal: list[float], advantages: list[float], weights: list[float]) -> float:
        total = 0.0
        for pi, old, advantage, weight in zip(current, proximal, advantages, weights, strict=True):
            ratio = math.exp(pi - old)
            value = min(ratio * advantage, clip(ratio, algorithm) * advantage)
            if algorithm.dual_clip and advantage < 0:
                value = max(value, algorithm.dual_clip * advantage)
            total += weight * value
        return total

    return objective


def plain_gspo(algorithm: Algorithm) -> Objective:
    def objective(current: list[float], proximal: list[float], advantages: list[float], weights: list[float]) -> float:
        total = 0.0
        for sequence in set(SEQUENCES):
            members = [index for index, of in enumerate(SEQUENCES) if of == sequence]
            ratio = math.exp(sum(current[index] - proximal[index] for index in members) / len(members))
            total += sum(weights[i] * min(ratio * advantages[i], clip(ratio, algorithm) * advantages[i]) for i in members)
        return total

    return objective


def plain_cispo(algorithm: Algorithm, fixed: list[float]) -> Objective:
    def objective(current: list[float], proximal: list[float], advantages: list[float], weights: list[float]) -> float:
        rows = zip(current, fixed, proximal, advantages, weights, strict=True)
        return sum(weight * clip(math.exp(held - old), algorithm) * advantage * pi for pi, held, old, advantage, weight in rows)

    return objective


def plain_reinforce(current: list[float], proximal: list[float], advantages: list[float], weights: list[float]) -> float:
    return sum(w * math.exp(pi - old) * a for pi, old, a, w in zip(current, proximal, advantages, weights, strict=True))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("loss", ["ppo", "ppo-dual", "gspo", "cispo", "reinforce"])
@pytest.mark.parametrize("proximal", ["sampler", "start"])
def test_value_and_gradient_equal_the_plain_formula(loss: str, proximal: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = len(SEQUENCES)
    sampler, start, current = (rng.normal(-2, spread, count).tolist() for spread in (0.5, 0.5, 0.5))
    advantages, weights = rng.normal(0, 1, count).tolist(), rng.uniform(0.1, 1, count).tolist()
    algorithm = Algorithm.model_validate({"loss": loss.split("-")[0], "dual_clip": 1.5 if loss == "ppo-dual" else None})
    correction = Correction.model_validate({"proximal": proximal, "truncate": 1.5, "mask_low": 0.4, "mask_high": 3.0})
    logprobs_N = torch.tensor(current, dtype=torch.float64, requires_grad=True)
    tokens = Tokens(
        logprobs_N,
        *(torch.tensor(values, dtype=torch.float64) for values in (sampler, advantages, weights)),
        sequence_N=torch.tensor(SEQUENCES),
        entropy_N=torch.zeros(count, dtype=torch.float64),
        start_logprobs_N=torch.tensor(start, dtype=torch.float64),
    )
    _, gradient = gradient_of(tokens, algorithm, correction)

    ratios = [math.exp(s - m) for s, m in zip(start, sampler, strict=True)]
    corrected = [
        weight * (min(ratio, 1.5) if proximal == "start" else 1.0) * (0.4 <= ratio <= 3.0)
        for weight, ratio in zip(weights, ratios, strict=True)
    ]
    plain = {
        "ppo": plain_ppo(algorithm),
        "ppo-dual": plain_ppo(algorithm),
        "gspo": plain_gspo(algorithm),
        "cispo": plain_cispo(algorithm, current),
        "reinforce": plain_reinforce,
    }[loss]
    old = sampler if proximal == "sampler" else start

    def value(at: list[float]) -> float:
        return -plain(at, old, advantages, corrected)

    def slope(index: int) -> float:
        up, down = ([c + sign * 1e-6 * (i == index) for i, c in enumerate(current)] for sign in (1, -1))
        return (value(up) - value(down)) / 2e-6

    assert policy_loss(tokens, algorithm, correction).loss.item() == pytest.approx(value(current), rel=1e-9)
    assert gradient == pytest.approx([slope(index) for index in range(count)], rel=1e-5, abs=1e-8)
