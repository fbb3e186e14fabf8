"""Coverage of intervals, and the power of pairing, on cuts of what docs/evaluation.md has."""

import pytest

from tests.common.evaluation.coverage import GAIN, Pairs, coverage, graded_coverage, paired_coverage, power


@pytest.mark.parametrize("prompts", [16, 64, 512])
@pytest.mark.parametrize("mean", [0.05, 0.3, 0.9])
def test_interval_of_single_attempts_covers_as_often_as_it_says(prompts: int, mean: float) -> None:
    """Computed, not drawn; with few prompts only some coverages are possible."""
    assert 0.92 <= coverage(prompts, 1, mean, 0.0, runs=0) <= 0.985


@pytest.mark.parametrize(("prompts", "attempts"), [(16, 16), (64, 4), (64, 16), (256, 8)])
@pytest.mark.parametrize("mean", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6])
def test_interval_of_clustered_attempts_covers_as_often_as_it_says(prompts: int, attempts: int, mean: float, correlation: float) -> None:
    assert 0.90 <= coverage(prompts, attempts, mean, correlation, runs=400) <= 0.99


def test_interval_of_graded_rewards_covers_as_often_as_it_says() -> None:
    assert 0.92 <= graded_coverage(64, 4, 0.3, 0.3, runs=400) <= 0.98


@pytest.mark.parametrize(("attempts", "correlation"), [(1, 1.0), (4, 0.3), (16, 0.3)])
@pytest.mark.parametrize("gain", [0.0, 0.05])
def test_interval_of_a_paired_difference_covers_as_often_as_it_says(attempts: int, correlation: float, gain: float) -> None:
    assert 0.92 <= paired_coverage(Pairs(64, attempts, 0.5, correlation, changed=0.2, gain=gain), runs=400) <= 0.99


def test_paired_test_finds_a_small_gain_with_a_third_of_the_prompts() -> None:
    found = power(0.5, 0.15, runs=300)
    assert found["correlation"] == pytest.approx(0.704, abs=0.001)
    assert found["ratio"] <= 1 / 3 + 0.03
    assert GAIN == 0.05
