"""One optimizer step: isolation between tasks, gradients and metrics."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from common.errors import Reject
from common.spec import TaskSpec
from tests.support.trainer.groups import make_groups, make_spec
from tests.support.trainer.models import VOCABULARY
from tests.trainer.steps import BUDGET, DIFFERENT, assert_identical, begin, changed, packed_samples, run, step
from trainer_svc.algorithm.batched_steps import Gradient, run_requests
from trainer_svc.algorithm.step import StepResult, train_step
from trainer_svc.algorithm.step import step as step_of
from trainer_svc.batch import Group, Trajectory
from trainer_svc.model.policy import Adapted, Policy
from trainer_svc.state.resident import Resident


def gradient(
    policy: Policy, resident: Resident, groups: list[Group], spec: TaskSpec, *, budget: int = BUDGET, shared: bool = True
) -> Gradient:
    """Gradient of the step's first update, as one minibatch."""
    spec = spec.model_copy(update={"algorithm": spec.algorithm.model_copy(update={"minibatches": 1})})
    policy.shares_prefixes = shared
    try:
        running, found = step_of(policy, resident, groups, spec, budget_tokens=budget), None
        while found is None or found.gradient is None:
            request = next(running) if found is None else running.send(found)
            (found,) = run_requests(policy, [request], budget_tokens=budget)
    finally:
        policy.shares_prefixes = True
    return found.gradient


def test_interleaved_tasks_equal_tasks_alone_bit_for_bit(policy: Policy) -> None:
    alone = {name: run(policy, spec, 4) for name, spec in DIFFERENT.items()}
    together = {name: begin(policy, spec) for name, spec in DIFFERENT.items()}
    for name in "abcdefbdcfaecabefdacbdef":
        together[name] = step(policy, together[name], DIFFERENT[name]).resident
    for name in DIFFERENT:
        assert_identical(together[name], alone[name])
        assert not torch.equal(alone[name].optimizer.params, begin(policy, DIFFERENT[name]).optimizer.params)


@pytest.mark.parametrize("order", ["bd", "db"])
def test_what_another_task_computes_amid_a_step_changes_no_bit_of_it(policy: Policy, order: str) -> None:
    """Both need several forward passes, each of several micro-batches, and alternate, in either order."""
    residents = {name: begin(policy, DIFFERENT[name]) for name in order}
    groups = {name: make_groups(ord(name), groups=4) for name in order}
    running = {name: step_of(policy, residents[name], groups[name], DIFFERENT[name], budget_tokens=64) for name in order}
    found, asked = dict[str, StepResult](), {name: next(one) for name, one in running.items()}
    turns = 0
    while asked:
        for name in [name for name in order if name in asked]:
            (answered,) = run_requests(policy, [asked.pop(name)], budget_tokens=64)
            turns += answered.micro_batches
            try:
                asked[name] = running[name].send(answered)
            except StopIteration as finished:
                found[name] = finished.value
    assert turns > 8
    for name in order:
        alone = train_step(policy, residents[name], groups[name], DIFFERENT[name], budget_tokens=64)
        assert_identical(found[name].resident, alone.resident)
        assert found[name].canary == alone.canary


def test_a_step_touches_nothing_of_the_base_model_or_of_what_went_in(policy: Policy) -> None:
    before = begin(policy, DIFFERENT["a"])
    copies = [before.optimizer.params.clone(), before.optimizer.exp_avg.clone(), before.optimizer.exp_avg_sq.clone()]
    weights = {name: layer.weight.clone() for name, layer in policy.layers.items()}
    step(policy, before, DIFFERENT["a"])
    for found, expected in zip((before.optimizer.params, before.optimizer.exp_avg, before.optimizer.exp_avg_sq), copies, strict=True):
        assert torch.equal(found, expected)
    assert before.optimizer.params.grad is None
    for name, layer in policy.layers.items():
        assert torch.equal(layer.weight, weights[name])
        assert layer.weight.grad is None


def test_gradient_is_clipped_to_the_tasks_own_norm(policy: Policy) -> None:
    for clip_norm in (0.05, 1e6):
        spec = make_spec("a", optimizer={"clip_norm": clip_norm, "betas": [0.9, 0.99]})
        result = step(policy, begin(policy, spec), spec)
        unclipped = result.metrics["grad_norm"]
        assert unclipped > 0.1
        moment = torch.linalg.vector_norm(result.resident.optimizer.exp_avg).item()
        assert moment == pytest.approx(0.1 * min(clip_norm, unclipped), rel=1e-4)


@pytest.mark.parametrize("name", [*DIFFERENT])
def test_gradient_does_not_depend_on_how_the_step_is_split(policy: Policy, name: str) -> None:
    spec, groups = DIFFERENT[name], make_groups(5, groups=4, size=4, turns=2)
    resident = run(policy, spec, 1)
    whole, *others = (
        gradient(policy, resident, groups, spec, budget=budget, shared=shared)
        for budget, shared in ((100_000, True), (64, True), (100_000, False), (64, False))
    )
    for other in others:
        torch.testing.assert_close(other.vector, whole.vector, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(other.loss, whole.loss, rtol=1e-4, atol=1e-6)
        for field in ("log_ratio_N", "clipped_N", "masked_N", "entropy_N", "kl_base_N", "staleness_N"):
            found, expected = getattr(other.measured, field), getattr(whole.measured, field)
            np.testing.assert_allclose(np.sort(found), np.sort(expected), rtol=1e-3, atol=1e-3, err_msg=field)


def test_budget_splits_a_step_and_sharing_saves_tokens() -> None:
    spec, groups = DIFFERENT["a"], make_groups(5, groups=4, size=4, turns=2)
    whole, split, unshared = (
        packed_samples(groups, spec, budget=budget, shared=shared) for budget, shared in ((100_000, True), (64, True), (100_000, False))
    )
    assert len(split) > len(whole)
    assert sum(packed.ids_B_T.size for packed in unshared) > sum(packed.ids_B_T.size for packed in whole)


def test_gradient_does_not_depend_on_the_order_of_trajectories(policy: Policy) -> None:
    spec, groups = DIFFERENT["a"], make_groups(5)
    resident = run(policy, spec, 1)
    backwards = [replace(group, trajectories=group.trajectories[::-1]) for group in groups[::-1]]
    one, two = (gradient(policy, resident, order, spec) for order in (groups, backwards))
    torch.testing.assert_close(two.vector, one.vector, rtol=1e-4, atol=1e-6)


def test_group_with_equal_rewards_pulls_nowhere(policy: Policy) -> None:
    spec = DIFFERENT["c"]
    result = step(policy, begin(policy, spec), spec, changed(make_groups(5), reward=0.3))
    assert result.metrics["grad_norm"] == 0
    assert torch.equal(result.resident.optimizer.params, begin(policy, spec).optimizer.params)


def test_tokens_that_were_not_sampled_have_no_part_in_the_loss(policy: Policy) -> None:
    """Logprobs at masked positions, and all tokens after the last sampled one, are ignored."""
    spec, groups = DIFFERENT["a"], make_groups(5, turns=2)

    def odd(one: Trajectory) -> NDArray[np.float32]:
        return np.where(one.sampled_T == 1, one.sampler_logprobs_T, np.float32(99))

    masked = [replace(group, trajectories=tuple(replace(t, sampler_logprobs_T=odd(t)) for t in group.trajectories)) for group in groups]
    resident = begin(policy, spec)
    assert_identical(step(policy, resident, spec, masked).resident, step(policy, resident, spec, groups).resident)


def test_policy_learns_what_is_rewarded(policy: Policy) -> None:
    """Rewarded replies are likelier, and the others rarer, after a few steps on the same groups."""
    spec = make_spec("a", optimizer={"learning_rate": 0.01}, algorithm={"clip_low": 0.9, "clip_high": 9})
    groups = make_groups(11, groups=2, staleness=1)
    resident = begin(policy, spec)

    def margin(resident: Resident) -> float:
        (packed,) = packed_samples(groups, spec, budget=9999)
        with torch.no_grad():
            logprobs_N = policy.scores(packed, [Adapted(resident.layout, resident.optimizer.params)]).logprobs_N
        return float((logprobs_N * torch.from_numpy(packed.advantages_N)).mean())

    before = margin(resident)
    for _ in range(5):
        resident = step(policy, resident, spec, groups).resident
    assert margin(resident) > before + 0.1


def test_metrics_say_what_happened(policy: Policy) -> None:
    groups = [replace(group, staleness=group.group) for group in make_groups(5)]
    result = step(policy, begin(policy, DIFFERENT["a"]), DIFFERENT["a"], groups)
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    assert result.metrics["reward_mean"] == 0.25
    assert result.metrics["reward_std"] == pytest.approx(math.sqrt(0.25 * 0.75))
    assert result.metrics["tokens"] == sum(trajectory.sampled_tokens for trajectory in trajectories)
    assert result.metrics["response_length"] == pytest.approx(result.metrics["tokens"] / 12)
    assert (result.metrics["staleness_mean"], result.metrics["staleness_max"]) == (1.0, 2.0)
    assert result.metrics["truncated_share"] == 0.5
    assert 0 < result.metrics["entropy"] < math.log(VOCABULARY)
    assert result.metrics["kl_sampler"] > 0
    assert result.metrics["ratio_max"] >= result.metrics["ratio_p99"] >= result.metrics["ratio_mean"]
    shares = [result.metrics[f"ratio.{edge}"] for edge in ("0.5", "0.8", "0.9", "0.97", "1.03", "1.1", "1.25", "2")]
    assert 0 < shares[0] < shares[-1] < 1
    assert shares == sorted(shares)
    assert 0 < result.metrics["effective_sample_share"] < 1
    assert result.metrics["sampler_mismatch"] > 0
    assert {stale: result.metrics[f"staleness.{stale}"] for stale in range(3)} == pytest.approx({0: 1 / 3, 1: 1 / 3, 2: 1 / 3})
    assert result.metrics["response_length_max"] == max(trajectory.sampled_tokens for trajectory in trajectories)
    assert result.metrics["zero_variance_share"] == 0
    assert (result.metrics["updates"], result.metrics["skipped_updates"]) == (1, 0)
    assert result.metrics["masked_fraction"] == 0
    assert "kl_base" not in result.metrics
    assert 0 < result.metrics["clip_fraction"] < 1
    assert result.trained_tokens == sum(len(trajectory.ids_T) for trajectory in trajectories)


def test_batch_without_sampled_tokens_is_rejected(policy: Policy) -> None:
    (group,) = make_groups(5, groups=1)
    empty = replace(group, trajectories=tuple(replace(t, sampled_T=np.zeros_like(t.sampled_T)) for t in group.trajectories))
    with pytest.raises(Reject, match="no sampled token"):
        step(policy, begin(policy, DIFFERENT["a"]), DIFFERENT["a"], [empty])
