"""Standard errors, intervals and paired differences, against values computed by hand or printed in tables."""

import pytest

from common.evaluation import mean_reward, paired_difference, share, student_quantile


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (10, 2.2281), (30, 2.0423), (100, 1.9840), (4000, 1.9600)],
)
def test_quantile_is_that_of_the_tables(degrees: int, quantile: float) -> None:
    assert student_quantile(degrees) == pytest.approx(quantile, abs=6e-5)


def test_graded_rewards_have_the_error_of_their_prompts_means() -> None:
    found = mean_reward([[0.5, 0.7], [0.2, 0.2], [0.4, 0.6]])  # means 0.6, 0.2, 0.5: standard deviation 0.2082
    assert found.mean == pytest.approx(0.4333, abs=1e-4)
    assert found.standard_error == pytest.approx(0.2082 / 3**0.5, abs=1e-4)
    assert found.interval == pytest.approx((0.4333 - 4.3027 * 0.1202, 0.4333 + 4.3027 * 0.1202), abs=1e-3)


def test_prompt_with_more_attempts_weighs_more() -> None:
    """Mean 6.5 / 4; the prompts' totals are 1.125 above and below the mean times their attempts."""
    found = mean_reward([[2.0, 2.0, 2.0], [0.5]])
    assert found.mean == 6.5 / 4
    assert found.standard_error == pytest.approx((2 * 2 * 1.125**2) ** 0.5 / 4)


@pytest.mark.parametrize(
    ("passed", "prompts", "interval"),
    [(0, 10, (0.0, 0.2775)), (10, 10, (0.7225, 1.0)), (64, 64, (0.9434, 1.0)), (32, 64, (0.3811, 0.6189)), (1, 20, (0.0089, 0.2361))],
)
def test_single_attempts_have_wilsons_interval(passed: int, prompts: int, interval: tuple[float, float]) -> None:
    found = mean_reward([[1.0]] * passed + [[0.0]] * (prompts - passed))
    assert found.interval == pytest.approx(interval, abs=1e-4)


def test_attempts_that_repeat_each_other_say_no_more_than_one() -> None:
    once, often = (mean_reward([[1.0] * times] * 20 + [[0.0] * times] * 20).interval for times in (1, 16))
    assert once is not None
    assert often is not None
    assert often == pytest.approx(once, abs=0.005)
    apart = mean_reward([[1.0, 0.0] * 8] * 40).interval
    assert apart is not None
    assert apart[1] - apart[0] < (once[1] - once[0]) / 2


def test_prompts_that_all_passed_at_every_attempt_count_as_one_attempt_each() -> None:
    assert mean_reward([[1.0] * 16] * 64).interval == mean_reward([[1.0]] * 64).interval


def test_single_prompt_has_no_interval() -> None:
    assert mean_reward([[1.0, 0.0]]).interval is None
    assert mean_reward([[0.3]]).standard_error is None
    assert share([0.5], [1], attempts=2).interval is None


def test_paired_difference_is_that_of_the_same_prompts() -> None:
    found = paired_difference([0.2, 0.4, 0.9], [0.3, 0.6, 1.2])  # differences 0.1, 0.2, 0.3
    assert found is not None
    assert (found.mean, found.standard_error, found.prompts) == (pytest.approx(0.2), pytest.approx(0.1 / 3**0.5), 3)
    assert found.interval == pytest.approx((0.2 - 4.3027 * 0.0577, 0.2 + 4.3027 * 0.0577), abs=1e-3)


def test_paired_difference_of_rewards_0_and_1_counts_a_prompt_more_on_either_side() -> None:
    """Bonett and Price: (b + 1 − c − 1) / (n + 2) ± t · √((b + c + 2 − (b − c)² / (n + 2)) / (n + 2)²)."""
    found = paired_difference([0.0] * 12 + [1.0] * 4 + [1.0] * 48, [1.0] * 12 + [0.0] * 4 + [1.0] * 48, resolution=1.0)
    assert found is not None
    assert found.mean == 8 / 64
    half = student_quantile(63) * ((18 / 66 - (8 / 66) ** 2) / 66) ** 0.5
    assert found.interval == pytest.approx((8 / 66 - half, 8 / 66 + half))


def test_equal_rewards_of_0_and_1_leave_the_difference_uncertain() -> None:
    found = paired_difference([1.0] * 64, [1.0] * 64, resolution=1.0)
    assert found is not None
    assert found.interval is not None
    assert found.interval[0] < -0.03
    assert found.interval[1] > 0.03


def test_nothing_in_common_has_no_difference() -> None:
    assert paired_difference([], []) is None
    alone = paired_difference([0.0], [1.0])
    assert alone is not None
    assert (alone.mean, alone.interval) == (1.0, None)


def test_rewards_beyond_what_can_be_squared_have_no_interval() -> None:
    found = mean_reward([[1e200], [-1e200], [3.0]])
    assert (found.standard_error, found.interval) == (None, None)
    apart = paired_difference([1e200, 0.0], [-1e200, 0.0])
    assert apart is not None
    assert (apart.standard_error, apart.interval) == (None, None)
