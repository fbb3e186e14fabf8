"""Reward shaping: ranks within the group, and attempts that are cut off."""

from dataclasses import replace

import pytest

from common.errors import Reject
from common.spec import TaskSpec
from tests.trainer.conftest import make_groups, make_spec
from trainer_svc.algorithm.reward_shaping import counted_tokens, excess_length, rank_shares, shaped_rewards


def test_penalty_rises_over_the_buffer_to_the_limit() -> None:
    assert [excess_length(tokens, 100, 40) for tokens in (1, 60, 70, 90, 100, 120)] == [0, 0, 0.25, 0.75, 1, 1]


def test_long_attempts_lose_reward_in_proportion() -> None:
    (group,) = make_groups(3, groups=1)
    spec = make_spec("a", sampling={"max_tokens": 10}, overlong={"rule": "penalize", "buffer_tokens": 10, "penalty": 0.5})
    expected = [t.reward - 0.5 * t.sampled_tokens / 10 for t in group.trajectories]
    assert shaped_rewards(group, spec) == pytest.approx(expected)
    assert shaped_rewards(group, make_spec("a")) == [t.reward for t in group.trajectories]


def test_rank_is_the_share_of_the_others_that_are_less() -> None:
    assert rank_shares([3.0, 1.0, 2.0]) == [1.0, 0.0, 0.5]
    assert rank_shares([1.0, 1.0, 5.0, 0.0]) == pytest.approx([0.5, 0.5, 1.0, 0.0])
    assert rank_shares([2.0, 2.0]) == [0.5, 0.5]


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
