"""Reward shaping: ranks within the group, the penalty for length, and which groups have equal rewards after it."""

from dataclasses import replace
from typing import Any

import pytest

from common.shaping import Attempt, are_equal, excess_length, has_equal_rewards, rank_shares, shaped_rewards
from common.spec import TaskSpec
from tests.support.trainer.groups import make_spec

RANKED = {"environment": {"name": "e", "rank_weights": {"short": 0.2}}}
PENALIZED: dict[str, Any] = {"sampling": {"max_tokens": 10}, "overlong": {"rule": "penalize", "buffer_tokens": 10, "penalty": 0.5}}


def attempts(*rewards: float, **changes: Any) -> list[Attempt]:
    """Attempts of ever more tokens."""
    made = [Attempt(reward, 2 + place, 2 + place, {"short": -2.0 - place}) for place, reward in enumerate(rewards)]
    return [replace(one, **changes) for one in made]


def test_penalty_rises_over_the_buffer_to_the_limit() -> None:
    assert [excess_length(tokens, 100, 40) for tokens in (1, 60, 70, 90, 100, 120)] == [0, 0, 0.25, 0.75, 1, 1]


def test_rank_is_the_share_of_the_others_that_are_less() -> None:
    assert rank_shares([3.0, 1.0, 2.0]) == [1.0, 0.0, 0.5]
    assert rank_shares([1.0, 1.0, 5.0, 0.0]) == pytest.approx([0.5, 0.5, 1.0, 0.0])
    assert rank_shares([2.0, 2.0]) == [0.5, 0.5]


def test_component_that_is_no_number_ranks_as_one_that_is_missing() -> None:
    spec = make_spec("a", **RANKED)
    strange = [replace(one, components={"short": float("nan")}) for one in attempts(1.0, 1.0)]
    assert shaped_rewards(strange, spec) == shaped_rewards(attempts(1.0, 1.0, components={}), spec) == [1.1, 1.1]


@pytest.mark.parametrize(
    ("sections", "made", "expected"),
    [
        ({}, attempts(1.0, 1.0), True),
        ({}, attempts(1.0, 0.0), False),
        (RANKED, attempts(1.0, 1.0, 1.0), False),  # all correct, and the shorter the better
        (RANKED, attempts(1.0, 1.0, components={"short": 1.0}), True),
        ({"environment": {"name": "e", "rank_weights": {"reward": 1.0}}}, attempts(1.0, 1.0), True),
        (PENALIZED, attempts(1.0, 1.0), False),
        (PENALIZED, [Attempt(1.0, 10, 10, {}), Attempt(0.5, 0, 0, {})], True),  # what one earned more, its length took
        (PENALIZED, attempts(1.0, 1.0, sampled_tokens=12), True),
    ],
)
def test_groups_are_equal_by_shaped_rewards(sections: dict[str, Any], made: list[Attempt], expected: bool) -> None:
    spec = make_spec("a", **sections)
    assert has_equal_rewards(made, spec) is expected
    assert are_equal(shaped_rewards(made, spec)) is expected


def test_attempt_alone_equals_nothing() -> None:
    assert not are_equal([1.0])
    assert not are_equal([])


def penalized_by_turn() -> dict[str, Any]:
    return PENALIZED | {"limits": {"max_turns": 3}, "overlong": PENALIZED["overlong"] | {"per": "turn"}}


def test_turn_that_was_cut_is_penalized_in_an_episode_with_tokens_left() -> None:
    cut, short, even = Attempt(1.0, 12, 10, {}), Attempt(1.0, 12, 4, {}), Attempt(1.0, 30, 10, {})
    by_turn = make_spec("a", **penalized_by_turn())
    assert shaped_rewards([cut, short, even], by_turn) == [0.5, 0.8, 0.5]
    of_all = TaskSpec.model_validate(by_turn.model_dump() | {"overlong": PENALIZED["overlong"]})
    assert shaped_rewards([cut, short, even], of_all) == [1.0, 1.0, 0.5]
