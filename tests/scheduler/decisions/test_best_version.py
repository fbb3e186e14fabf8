"""Which version `@best` names."""

import pytest

from scheduler_svc.training.decisions.evaluation import Judged, best_version

ALL = frozenset(range(1, 20))
REWARDS = [(version, 0.5) for version in range(1, 9)]


def judged(version: int, reward: float, bound: float | None) -> Judged:
    return Judged(version, reward, bound)


@pytest.mark.parametrize(
    ("evaluated", "by_mean", "best"),
    [
        ([judged(2, 0.9, 0.1), judged(4, 0.5, 0.4)], False, 4),
        ([judged(2, 0.9, 0.1), judged(4, 0.5, 0.4)], True, 2),
        ([judged(2, 0.9, None), judged(4, 0.1, 0.05)], False, 4),
        ([judged(2, 0.5, 0.4), judged(4, 0.6, 0.4)], False, 4),
        ([judged(4, 0.5, 0.4), judged(2, 0.5, 0.4)], False, 2),
        ([judged(0, 1.0, 1.0), judged(4, 0.5, 0.4)], False, 4),
    ],
    ids=["lower bound", "mean", "no bound", "equal bounds", "equals: the earlier", "the base model is no version"],
)
def test_best_of_evaluated_versions(evaluated: list[Judged], by_mean: bool, best: int) -> None:
    assert best_version(evaluated, [(8, 1.0)], ALL, by_mean=by_mean) == best


def test_without_evaluations_it_is_the_highest_reward_of_the_last_five_steps() -> None:
    assert best_version([], [(1, 9.0), (2, 0.1), (3, 0.7), (4, 0.6), (5, 0.7), (6, 0.2)], ALL) == 3
    assert best_version([judged(0, 1.0, 1.0)], REWARDS, ALL) == 4, "an evaluation of the base model says nothing about these"


def test_only_stored_versions_are_named() -> None:
    assert best_version([judged(2, 0.9, 0.8), judged(4, 0.5, 0.4)], [], {3, 4}) == 4
    assert best_version([judged(2, 0.9, 0.8)], [(6, 0.9), (7, 0.1), (8, 0.2)], {7, 8}) == 8
    assert best_version([judged(2, 0.9, 0.8)], REWARDS, ()) is None
    assert best_version([], [], ALL) is None
