"""Reward shaping: ranks within the group, and attempts that are cut off."""

from dataclasses import replace

import numpy as np
import pytest

from common.errors import Reject
from common.shaping import rank_shares
from common.spec import TaskSpec
from tests.support.trainer.groups import make_groups, make_spec
from tests.trainer.steps import begin, changed, step
from trainer_svc.algorithm.advantage import counted_tokens, shaped_rewards
from trainer_svc.algorithm.step import weighted_samples
from trainer_svc.model.policy import Policy


def test_long_attempts_lose_reward_in_proportion() -> None:
    (group,) = make_groups(3, groups=1)
    spec = make_spec("a", sampling={"max_tokens": 10}, overlong={"rule": "penalize", "buffer_tokens": 10, "penalty": 0.5})
    expected = [t.reward - 0.5 * t.sampled_tokens / 10 for t in group.trajectories]
    assert shaped_rewards(group, spec) == pytest.approx(expected)
    assert shaped_rewards(group, make_spec("a")) == [t.reward for t in group.trajectories]


def test_group_relative_part_is_added_by_rank_within_the_group() -> None:
    (group,) = make_groups(3, groups=1)
    lengths = range(len(group.trajectories), 0, -1)
    group = replace(
        group, trajectories=tuple(replace(t, components={"characters": float(n)}) for t, n in zip(group.trajectories, lengths, strict=True))
    )
    last = len(group.trajectories) - 1
    spec = make_spec("a", environment={"name": "e", "rank_weights": {"characters": -0.5, "missing": 7.0}})
    expected = [t.reward - 0.5 * (last - place) / last + 7.0 * 0.5 for place, t in enumerate(group.trajectories)]
    assert shaped_rewards(group, spec) == pytest.approx(expected)
    by_reward = make_spec("a", environment={"name": "e", "rank_weights": {"reward": 1.0}})
    ranks = rank_shares([t.reward for t in group.trajectories])
    assert shaped_rewards(group, by_reward) == pytest.approx([t.reward + rank for t, rank in zip(group.trajectories, ranks, strict=True)])


def test_limit_counts_every_turn() -> None:
    (group,) = make_groups(3, groups=1, turns=2)
    spec = make_spec("a", sampling={"max_tokens": 50}, limits={"max_turns": 2}, overlong={"rule": "penalize", "buffer_tokens": 20})
    assert shaped_rewards(group, spec) == [t.reward for t in group.trajectories]  # all far below 100 tokens


def test_limit_per_turn_counts_the_longest_turn() -> None:
    (group,) = make_groups(3, groups=1, turns=2)
    spec = make_spec(
        "a", sampling={"max_tokens": 8}, limits={"max_turns": 2}, overlong={"rule": "penalize", "buffer_tokens": 8, "per": "turn"}
    )
    for trajectory, found in zip(group.trajectories, shaped_rewards(group, spec), strict=True):
        first, second = (len(run) for run in trajectory.sampled_T.tobytes().split(b"\0") if run)
        assert found == pytest.approx(trajectory.reward - max(first, second) / 8)


def test_cut_off_attempts_are_masked_on_request_only() -> None:
    (group,) = make_groups(3, groups=1)
    for trajectory in group.trajectories:
        assert counted_tokens(trajectory, make_spec("a")) == trajectory.sampled_tokens
        masked = counted_tokens(trajectory, make_spec("a", overlong={"rule": "mask"}))
        assert masked == (0 if trajectory.truncated else trajectory.sampled_tokens)


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        ({"overlong": {"rule": "penalize"}}, "overlong: rule 'penalize' needs buffer_tokens"),
        ({"overlong": {"buffer_tokens": 65}}, "overlong.buffer_tokens is 65, but a trajectory has at most 64 tokens"),
        ({"overlong": {"buffer_tokens": 65, "per": "turn"}, "limits": {"max_turns": 2}}, "is 65, but a turn has at most 64 tokens"),
        ({"algorithm": {"loss": "reinforce"}}, "'reinforce' has no bounds of its own: with max_staleness above 0 set correction.proximal"),
        ({"algorithm": {"minibatches": 9}}, "minibatches is 9, but a step has 8 groups"),
        ({"algorithm": {"advantage": "reinforce_pp", "group_size": 1, "groups_per_step": 1}}, "a step of one attempt"),
    ],
)
def test_specs_that_cannot_work_are_refused(sections: dict[str, object], complaint: str) -> None:
    with pytest.raises(Reject) as caught:
        make_spec("a", **sections)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    "sections",
    [
        {"algorithm": {"loss": "reinforce", "max_staleness": 0}},
        {"algorithm": {"loss": "reinforce"}, "correction": {"mask_high": 4}},
        {"algorithm": {"loss": "reinforce"}, "correction": {"proximal": "start"}},
        {"algorithm": {"loss": "reinforce", "max_staleness": 2}},
        {"algorithm": {"advantage": "reinforce_pp", "group_size": 1}},
    ],
)
def test_specs_that_can_work_are_taken(sections: dict[str, object]) -> None:
    make_spec("a", **sections)


@pytest.mark.parametrize(
    ("sections", "proximal"),
    [
        ({}, "sampler"),
        ({"algorithm": {"max_staleness": 1}}, "sampler"),
        ({"algorithm": {"max_staleness": 2}}, "start"),
        ({"algorithm": {"max_staleness": 2}, "correction": {"truncate": 3.0}}, "start"),
        ({"algorithm": {"max_staleness": 2}, "correction": {"proximal": "sampler"}}, "sampler"),
        ({"correction": {"proximal": "start"}}, "start"),
    ],
)
def test_what_may_be_two_versions_old_is_weighed_from_the_start_unless_the_task_says_otherwise(
    sections: dict[str, object], proximal: str
) -> None:
    spec = make_spec("a", **sections)
    assert spec.correction.proximal == proximal
    assert TaskSpec.model_validate(spec.model_dump(mode="json")) == spec, "as it is stored and sent, it says so"


def test_malformed_sections_are_named_as_such() -> None:
    with pytest.raises(Reject, match="correction"):
        make_spec("a", algorithm={"max_staleness": 2}, correction="start")


def test_metric_of_equal_groups_counts_those_whose_shaped_rewards_are_equal(policy: Policy) -> None:
    alike = changed(make_groups(4), reward=1.0)
    assert step(policy, begin(policy, make_spec("a")), make_spec("a"), alike).metrics["zero_variance_share"] == 1
    ranked = make_spec("a", environment={"name": "e", "rank_weights": {"length": 0.2}})
    by_length = [
        replace(group, trajectories=tuple(replace(t, components={"length": float(t.sampled_tokens)}) for t in group.trajectories))
        for group in alike
    ]
    metrics = step(policy, begin(policy, ranked), ranked, by_length).metrics
    assert (metrics["zero_variance_share"], metrics["reward_std"]) == (0, 0)
    assert metrics["advantage_max"] > 1
    alone = make_spec("a", algorithm={"advantage": "reinforce_pp", "group_size": 1})
    assert step(policy, begin(policy, alone), alone, make_groups(4, groups=6, size=1)).metrics["zero_variance_share"] == 0


def test_constant_normalisation_divides_by_all_tokens_that_an_episode_may_sample() -> None:
    groups = make_groups(3, turns=2)
    spec = make_spec("a", sampling={"max_tokens": 8}, limits={"max_turns": 3}, algorithm={"normalize": "constant"})
    (samples,) = weighted_samples(groups, [np.zeros(4)] * 3, spec)
    assert {sample.weight for group in samples for sample in group} == {1 / (12 * 3 * 8)}
