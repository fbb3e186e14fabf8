"""The rule by which skipped updates fail a task."""

from collections.abc import Iterable

import pytest

from trainer_svc.state.optimizer import Skips


def skipping(versions: Iterable[int]) -> Skips:
    """Skips after steps from these versions, none of which fails."""
    found = Skips()
    for version in versions:
        assert found.objection() is None
        found = found.after(version, 1)
    return found


@pytest.mark.parametrize(("versions", "fails"), [([4, 5, 6, 7], True), ([4, 5, 6], False), ([3, 5, 6, 7], False), ([0, 1, 2, 3], True)])
def test_fourth_in_a_row_fails(versions: list[int], fails: bool) -> None:
    objection = skipping(versions).objection()
    assert (objection == "updates of the 3 steps before were skipped, too, and no more may be in a row") is fails
    assert (objection is None) is not fails


@pytest.mark.parametrize("first", [0, 12, 250])
def test_eleventh_of_a_hundred_steps_fails(first: int) -> None:
    every_ninth = range(first, first + 99, 9)
    assert len(every_ninth) == 11
    assert skipping(every_ninth).objection() == "updates of 11 of the last 100 steps were skipped, and at most 10 may be"
    last = every_ninth[-1]
    assert skipping([*every_ninth[:-1], last + 10]).objection() is None, "the first is then older than the window"
    assert skipping([*every_ninth[:-1], last + 9]).objection() is not None, "the window's oldest step counts"


def test_one_of_ten_steps_may_be_skipped_for_ever_and_what_is_kept_stays_small() -> None:
    found = skipping(range(0, 5000, 10))
    assert (found.updates, len(found.versions)) == (500, 10)


def test_several_updates_of_one_step_count_once() -> None:
    found = Skips().after(0, 8).after(1, 8).after(2, 8)
    assert (found.updates, found.objection()) == (24, None)
    assert found.after(3, 0) is found
