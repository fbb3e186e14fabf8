"""Weights of reward components."""

import pytest

from env_svc.contract import WrongOptions
from env_svc.play import Failed, Scored
from env_svc.rewards import check_weights, weighted

SCORED = Scored(1.0, {"correct": 1.0, "length": 40.0})


def test_without_weights_the_reward_is_the_environments_own() -> None:
    assert weighted(SCORED, {}) is SCORED


def test_reward_is_the_weighted_sum_and_the_own_one_stays_visible() -> None:
    outcome = weighted(SCORED, {"reward": 2.0, "correct": 0.5, "length": -0.01})
    assert outcome == Scored(pytest.approx(2.1), {"reward": 1.0, "correct": 1.0, "length": 40.0})  # pyright: ignore


def test_component_that_an_attempt_lacks_counts_nothing() -> None:
    assert weighted(Scored(0.0, {"out_of_turns": 1.0}), {"correct": 1.0, "out_of_turns": -0.5}) == Scored(
        -0.5, {"reward": 0.0, "out_of_turns": 1.0}
    )


def test_failure_stays_a_failure() -> None:
    assert weighted(Failed("sandbox died", True), {"correct": 1.0}) == Failed("sandbox died", True)


def test_sum_that_is_not_finite_is_a_failure() -> None:
    outcome = weighted(Scored(1e308, {}), {"reward": 10.0})
    assert isinstance(outcome, Failed) and "not a finite number" in outcome.reason


def test_misspelt_weight_is_refused_where_the_environment_says_its_components() -> None:
    check_weights("math", ["correct", "format"], {"format": 0.1, "reward": 1.0, "out_of_turns": -1.0})
    check_weights("says nothing", [], {"anything": 1.0})
    with pytest.raises(WrongOptions, match="environment 'math' has no reward component 'formatt'; did you mean 'format'"):
        check_weights("math", ["correct", "format"], {"formatt": 0.1})
