"""When what an ended task has stored is announced and deleted."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.tenancy.decisions.expiry import DAY_S, KINDS, LEAD_S, Expiry, expiry

NEVER = dict.fromkeys(KINDS, 0)
NOTHING = Expiry({}, frozenset())


def at(day: float, days: int, announced: dict[str, float] | None = None, expired: tuple[str, ...] = ()) -> Expiry:
    return expiry(NEVER | {"events": days}, 0.0, announced or {}, expired, day * DAY_S)


def test_days_are_announced_one_before_and_kept_for_ever_where_there_are_none() -> None:
    assert at(10_000, 0) == NOTHING
    assert at(8.99, 10) == NOTHING
    announced = at(9, 10)
    assert announced == Expiry({"events": 9 * DAY_S}, frozenset())
    assert at(9.99, 10, announced.announced).due == frozenset()
    assert at(10, 10, announced.announced).due == {"events"}
    assert at(10, 10, announced.announced, ("events",)) == NOTHING


def test_days_that_have_passed_already_are_announced_too_and_raised_ones_take_it_back() -> None:
    assert at(50, 10) == Expiry({"events": 50 * DAY_S}, frozenset())
    assert at(50.99, 10, {"events": 50 * DAY_S}).due == frozenset()
    assert at(51, 10, {"events": 50 * DAY_S}).due == {"events"}
    assert at(51, 60, {"events": 50 * DAY_S}) == NOTHING


@given(st.dictionaries(st.sampled_from(KINDS), st.integers(1, 9)), st.lists(st.floats(0, 20), min_size=1, max_size=20))
def test_nothing_goes_before_its_days_or_less_than_a_day_after_it_was_announced(days: dict[str, int], moments: list[float]) -> None:
    announced: dict[str, float] = {}
    for moment in sorted(moments):
        now = expiry(NEVER | days, 0.0, announced, (), moment * DAY_S)
        for kind in now.due:
            assert moment >= days[kind]
            assert moment * DAY_S - announced[kind] >= LEAD_S
        announced = now.announced
