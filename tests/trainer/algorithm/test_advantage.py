"""Advantages, against numbers computed by hand."""

import math

import pytest

from common.errors import Reject
from trainer_svc.algorithm.advantage import BATCH_EPS, GRPO_EPS, WITHIN_GROUP, group_advantages, step_advantages


def test_dr_grpo_centres_on_the_mean() -> None:
    assert group_advantages([1, 0, 0, 1], "dr_grpo").tolist() == [0.5, -0.5, -0.5, 0.5]
    assert group_advantages([3, 0, 0], "dr_grpo").tolist() == [2, -1, -1]


def test_grpo_divides_by_the_sample_deviation() -> None:
    deviation = math.sqrt((4 + 1 + 1) / 2)  # deviations from the mean 1 are 2, −1, −1; G − 1 = 2
    expected = [value / (deviation + GRPO_EPS) for value in (2, -1, -1)]
    assert group_advantages([3, 0, 0], "grpo").tolist() == pytest.approx(expected, rel=1e-12)


def test_rloo_compares_with_the_others() -> None:
    # 4 against mean(1, 1), and 1 against mean(4, 1), twice
    assert group_advantages([4, 1, 1], "rloo").tolist() == pytest.approx([3, -1.5, -1.5], rel=1e-12)


def test_maxrl_divides_by_the_mean_so_that_rare_successes_count_more() -> None:
    assert group_advantages([1, 0, 0, 0], "maxrl").tolist() == pytest.approx([3, -1, -1, -1], rel=1e-12)
    assert group_advantages([1, 1, 1, 0], "maxrl").tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, -1], rel=1e-12)
    with pytest.raises(Reject, match=r"'maxrl' needs rewards of 0 or more, found -0.5; 'dr_grpo' takes any"):
        group_advantages([1, -0.5], "maxrl")


def test_reinforce_pp_compares_with_the_whole_step() -> None:
    # 4, 0 and 2, 2: mean 2, deviations 2, −2, 0, 0, population deviation √2
    (first, second) = step_advantages([[4, 0], [2, 2]], "reinforce_pp")
    expected = 2 / (math.sqrt(2) + BATCH_EPS)
    assert first.tolist() == pytest.approx([expected, -expected], rel=1e-12)
    assert second.tolist() == [0, 0]
    alone = [advantage.item() for advantage in step_advantages([[1.0], [0.0], [0.0]], "reinforce_pp")]
    assert alone == pytest.approx([math.sqrt(2), -math.sqrt(0.5), -math.sqrt(0.5)], rel=1e-6)


def test_reinforce_pp_with_baseline_centres_in_the_group_and_scales_in_the_step() -> None:
    # 4, 0 around 2 and 11, 9 around 10: 2, −2, 1, −1, whose deviation is √(10/4)
    (first, second) = step_advantages([[4, 0], [11, 9]], "reinforce_pp_baseline")
    deviation = math.sqrt(2.5) + BATCH_EPS
    assert first.tolist() == pytest.approx([2 / deviation, -2 / deviation], rel=1e-12)
    assert second.tolist() == pytest.approx([1 / deviation, -1 / deviation], rel=1e-12)
    (equal, _) = step_advantages([[0.1, 0.1, 0.1], [1, 0]], "reinforce_pp_baseline")
    assert equal.tolist() == [0, 0, 0]


@pytest.mark.parametrize("kind", [*WITHIN_GROUP, "reinforce_pp", "reinforce_pp_baseline"])
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3])
def test_equal_rewards_give_exact_zeros(kind: str, reward: float) -> None:
    for advantages in step_advantages([[reward] * 7] * 2, kind):
        assert advantages.tolist() == [0.0] * 7


@pytest.mark.parametrize("kind", [*WITHIN_GROUP, "reinforce_pp", "reinforce_pp_baseline"])
def test_advantages_sum_to_zero_and_keep_the_order_of_rewards(kind: str) -> None:
    (advantages,) = step_advantages([[0.3, 0.0, 5.0, 0.1]], kind)
    assert advantages.sum() == pytest.approx(0, abs=1e-7)
    assert advantages.argsort().tolist() == [1, 3, 0, 2]


def test_a_lone_member_and_a_reward_that_is_no_number_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        group_advantages([1.0], "grpo")
    with pytest.raises(ValueError, match="finite"):
        step_advantages([[1.0, float("nan")]], "rloo")
    with pytest.raises(ValueError, match="finite"):
        step_advantages([[1.0, float("inf")]], "reinforce_pp")
