"""Effects of a task's settings of loss, passes, correction and rewards on its step."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch

from common.errors import Reject
from common.spec import TaskSpec
from tests.support.trainer.groups import make_groups, make_spec
from tests.trainer.steps import DIFFERENT, assert_identical, begin, changed, packed_samples, step
from trainer_svc.batch import Group
from trainer_svc.model.policy import Adapted, Policy
from trainer_svc.state.resident import Resident


def agreeing(policy: Policy, resident: Resident, spec: TaskSpec, groups: list[Group]) -> list[Group]:
    """The same trajectories with this policy's own log-probabilities, as from its sampler."""
    found = []
    for group in groups:
        members = []
        for trajectory in group.trajectories:
            (packed,) = packed_samples([replace(group, trajectories=(trajectory, trajectory))], spec, shared=False)
            with torch.no_grad():
                scores = policy.scores(packed, [Adapted(resident.layout, resident.optimizer.params, spec.sampling.temperature)])
            logprobs_T = np.zeros(len(trajectory.ids_T), np.float32)
            logprobs_T[trajectory.sampled_T == 1] = scores.logprobs_N[: trajectory.sampled_tokens].numpy()
            members.append(replace(trajectory, sampler_logprobs_T=logprobs_T))
        found.append(replace(group, trajectories=tuple(members)))
    return found


def test_agreeing_sampler_shows_no_mismatch_and_every_sample_counts(policy: Policy) -> None:
    spec = DIFFERENT["a"]
    resident = begin(policy, spec)
    result = step(policy, resident, spec, agreeing(policy, resident, spec, make_groups(5)))
    assert result.metrics["sampler_mismatch"] < 1e-9
    assert result.metrics["effective_sample_share"] == pytest.approx(1, abs=1e-6)
    assert result.metrics["ratio_max"] == pytest.approx(1, abs=1e-4)


def test_sampler_that_disagrees_fails_the_step_unless_staleness_explains_it(policy: Policy) -> None:
    spec = make_spec("a", correction={"max_sampler_mismatch": 0.01})
    resident = begin(policy, spec)
    groups = agreeing(policy, resident, spec, make_groups(5))
    step(policy, resident, spec, groups)
    off = [
        replace(g, trajectories=tuple(replace(t, sampler_logprobs_T=t.sampler_logprobs_T - np.float32(0.2)) for t in g.trajectories))
        for g in groups
    ]
    with pytest.raises(Reject, match=r"task a, step from version 0: .*mismatch 0\.02 nats, but correction.max_sampler_mismatch is 0\.01"):
        step(policy, resident, spec, off)
    stale = step(policy, resident, spec, [replace(group, staleness=1) for group in off])
    assert "sampler_mismatch" not in stale.metrics


def test_passes_and_minibatches_are_updates_of_one_version(policy: Policy) -> None:
    groups = make_groups(5, groups=4)
    for passes, minibatches in ((1, 2), (3, 1), (2, 4)):
        spec = make_spec("a", algorithm={"passes": passes, "minibatches": minibatches})
        result = step(policy, begin(policy, spec), spec, groups)
        assert (result.resident.version, result.resident.optimizer.steps) == (1, passes * minibatches)
        assert result.metrics["updates"] == passes * minibatches
        assert result.metrics["tokens"] == sum(t.sampled_tokens for group in groups for t in group.trajectories)


def test_second_pass_is_clipped_around_the_policy_at_the_start_of_the_step(policy: Policy) -> None:
    """A huge learning rate takes the second pass far from the start, so its tokens are clipped."""
    spec = make_spec("a", algorithm={"passes": 2}, correction={"proximal": "start"}, optimizer={"learning_rate": 0.05})
    resident = begin(policy, spec)
    once = make_spec("a", correction={"proximal": "start"}, optimizer={"learning_rate": 0.05})
    groups = agreeing(policy, resident, spec, make_groups(5))
    assert step(policy, resident, once, groups).metrics["clip_fraction"] == 0
    assert step(policy, resident, spec, groups).metrics["clip_fraction"] > 0.1


def metrics_after(policy: Policy, steps: int, algorithm: dict[str, float]) -> Mapping[str, float]:
    """Metrics of the last of so many steps on the same stale groups."""
    spec = make_spec("a", algorithm=algorithm, optimizer={"learning_rate": 0.01})
    resident, metrics = begin(policy, spec), {}
    for _ in range(steps):
        result = step(policy, resident, spec, make_groups(5, staleness=1))
        resident, metrics = result.resident, result.metrics
    return metrics


def test_pull_to_the_base_model_keeps_the_policy_near_it(policy: Policy) -> None:
    def distance(kl_coefficient: float) -> float:
        return metrics_after(policy, 6, {"kl_coefficient": kl_coefficient})["kl_base"]

    first = step(policy, begin(policy, DIFFERENT["f"]), DIFFERENT["f"])
    assert first.metrics["kl_base"] == 0  # version 0 is the base model
    assert 0 < distance(10.0) < distance(1e-6) / 2


def test_entropy_bonus_spreads_probabilities(policy: Policy) -> None:
    def entropy(coefficient: float) -> float:
        return metrics_after(policy, 5, {"entropy_coefficient": coefficient})["entropy"]

    assert entropy(1.0) > entropy(0.0) + 0.05


def test_masked_attempts_pull_nowhere_but_count_in_their_group(policy: Policy) -> None:
    spec = make_spec("a", overlong={"rule": "mask"})
    groups = make_groups(5)
    resident = begin(policy, spec)
    everything_cut_off = step(policy, resident, spec, changed(groups, truncated=True))
    assert everything_cut_off.metrics["grad_norm"] == 0
    nothing_cut_off = step(policy, resident, spec, changed(groups, truncated=False))
    assert_identical(nothing_cut_off.resident, step(policy, resident, make_spec("a"), groups).resident)
    assert 0 < step(policy, resident, spec, groups).metrics["grad_norm"] != nothing_cut_off.metrics["grad_norm"]


def test_rank_within_a_group_is_trained_on_as_reward_is(policy: Policy) -> None:
    by_rank = make_spec("a", environment={"name": "e", "rank_weights": {"length": -1.0}})
    groups = [
        replace(group, trajectories=tuple(replace(t, reward=1.0, components={"length": float(t.member)}) for t in group.trajectories))
        for group in make_groups(5)
    ]
    resident = begin(policy, make_spec("a"))
    assert step(policy, resident, make_spec("a"), groups).metrics["grad_norm"] == 0
    ranked = step(policy, resident, by_rank, groups)
    assert ranked.metrics["grad_norm"] > 0
    assert ranked.metrics["reward.length"] == 1.5
    spelt_out = [
        replace(group, trajectories=tuple(replace(t, reward=1.0 - t.member / (len(group.trajectories) - 1)) for t in group.trajectories))
        for group in groups
    ]
    assert_identical(ranked.resident, step(policy, resident, make_spec("a"), spelt_out).resident)


def test_reward_components_are_reported_by_name(policy: Policy) -> None:
    (first, *others) = make_groups(5)
    trajectories = tuple(replace(t, components={"format": float(t.member), "odd": math.nan}) for t in first.trajectories)
    result = step(policy, begin(policy, DIFFERENT["a"]), DIFFERENT["a"], [replace(first, trajectories=trajectories), *others])
    assert result.metrics["reward.format"] == 1.5
    assert "reward.odd" not in result.metrics
