"""Weights of reward components."""

import pytest

from env_svc.calls import Failed, Scored
from env_svc.contract import WrongOptions
from env_svc.execution.executor import apply_weights, check_weights

SCORED = Scored(1.0, {"correct": 1.0, "length": 40.0})


def test_without_weights_the_reward_is_the_environments_own() -> None:
    assert apply_weights(SCORED, {}, "math") is SCORED


def test_reward_is_the_weighted_sum_and_the_own_one_stays_visible() -> None:
    outcome = apply_weights(SCORED, {"reward": 2.0, "correct": 0.5, "length": -0.01}, "math")
    assert outcome == Scored(pytest.approx(2.1), {"reward": 1.0, "correct": 1.0, "length": 40.0})  # pyright: ignore


def test_component_that_an_attempt_lacks_counts_nothing() -> None:
    assert apply_weights(Scored(0.0, {"out_of_turns": 1.0}), {"correct": 1.0, "out_of_turns": -0.5}, "math") == Scored(
        -0.5, {"reward": 0.0, "out_of_turns": 1.0}
    )


def test_failure_stays_a_failure() -> None:
    assert apply_weights(Failed("sandbox died", True), {"correct": 1.0}, "math") == Failed("sandbox died", True)


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ({"reward": 10.0}, "environment 'math': 10 × 'reward' is 9e+12, expected a finite number of at most 1e+12 either way"),
        ({"reward": 1e308, "cost": -1e308}, "1e+308 × 'reward' is inf"),
        ({"reward": 1.0, "cost": 1.0}, "environment 'math': the weighted sum of reward, cost is 1.8e+12, expected a finite number"),
    ],
)
def test_sum_that_is_too_large_is_a_failure_that_says_of_what(weights: dict[str, float], reason: str) -> None:
    outcome = apply_weights(Scored(9e11, {"cost": 9e11}), weights, "math")
    assert isinstance(outcome, Failed)
    assert reason in outcome.reason


def test_misspelt_weight_is_refused_where_the_environment_says_its_components() -> None:
    check_weights("math", ["correct", "format"], {"format": 0.1, "reward": 1.0, "out_of_turns": -1.0})
    check_weights("says nothing", [], {"anything": 1.0})
    with pytest.raises(WrongOptions, match="environment 'math' has no reward component 'formatt'; did you mean 'format'"):
        check_weights("math", ["correct", "format"], {"formatt": 0.1})
