"""Moves, tiers within budgets and booking of shared accelerators."""

from dataclasses import replace
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from common.accelerators import Function, Tier
from scheduler_svc.accelerators.booking import slice_shares
from scheduler_svc.accelerators.decisions.state import Demand, Park
from scheduler_svc.accelerators.decisions.tiers import MIN_S, Moves, Rates, Residents, measured, piece_s, prior_s, where_to_park
from tests.scheduler.decisions.accelerators import RULES, demand, idle, moves

NAMES = ("a", "b", "c", "d")


# --------------------------------------------------------------------------------------------------- moves and tiers


def test_moves_are_measured_ones_and_come_from_bytes_until_then() -> None:
    rates = Rates(host_bytes_per_s=10.0, disk_bytes_per_s=2.0, fixed_s=0.5)
    known = Moves(measured({("a", Tier.HOST, Tier.DEVICE): [9.0, 3.0, 4.0]}), rates)
    assert known.seconds("a", Tier.HOST, Tier.DEVICE, 100) == 4.0
    assert known.seconds("b", Tier.HOST, Tier.DEVICE, 100) == 10.5
    assert known.seconds("b", Tier.DISK, Tier.DEVICE, 100) == 50.5
    assert known.seconds("b", Tier.DEVICE, Tier.DISK, 100) == 0.5
    assert measured({("a", Tier.HOST, Tier.DEVICE): []}) == {}


def test_deeper_tiers_take_longer_to_wake_from() -> None:
    times = [prior_s(tier, Tier.DEVICE, 2**30, Rates()) for tier in Tier]
    assert all(first < second for first, second in pairwise(times))


def residents(*demands: Demand, **forecast_s: float) -> Residents:
    return Residents.of(demands, moves(*(one.executor for one in demands)), forecast_s)


def test_only_as_many_leave_as_the_next_one_needs_the_last_needed_first() -> None:
    on_device = [idle(name, tier=Tier.DEVICE, device_bytes=30) for name in ("a", "b", "c")]
    next_ = demand("d", device_bytes=40)
    found = where_to_park(next_, residents(*on_device, a=5.0, b=50.0, c=500.0), RULES.budget)
    assert found == (Park("c", Tier.DEVICE, Tier.HOST),)
    assert where_to_park(replace(next_, device_bytes=101), residents(*on_device), RULES.budget) is None


def test_full_host_memory_sends_to_disk_even_what_would_rather_stay() -> None:
    held = idle("a", tier=Tier.DEVICE, deepest=Tier.HOST)
    found = where_to_park(demand("b"), residents(held, demand("b"), idle("c", host_bytes=850)), RULES.budget)
    assert found == (Park("a", Tier.DEVICE, Tier.DISK),)


def test_paused_on_the_device_only_stays_there() -> None:
    held = idle("a", tier=Tier.DEVICE, deepest=Tier.DEVICE)
    assert where_to_park(demand("b"), residents(held), RULES.budget) is None
    assert where_to_park(demand("b", device_bytes=0), residents(held), RULES.budget) == ()


# ------------------------------------------------------------------------------------------------------- operations


def test_operation_is_expected_to_take_what_was_measured_or_a_prior() -> None:
    assert piece_s(4.0, Function.TRAIN) == 4.0
    assert piece_s(None, Function.TRAIN) > piece_s(None, Function.GENERATE) > 0
    assert piece_s(1e-9, Function.GENERATE) == MIN_S, "no ratio has a zero below"


# ----------------------------------------------------------------------------------------------------------- booking


@given(st.integers(0, 10**7), st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 10**9), max_size=20))
@settings(max_examples=200, deadline=None)
def test_shares_of_a_slice_are_exact(slice_ms: int, served: dict[str, int]) -> None:
    shares = slice_shares(slice_ms, served, ["ordered"])
    assert sum(shares.values()) == slice_ms
    assert shares == slice_shares(slice_ms, dict(reversed(served.items())), ["ordered"])
    whole = sum(served.values())
    for task, share in shares.items():
        assert whole == 0 or abs(share - slice_ms * served[task] / whole) < 1


def test_slice_that_served_nothing_is_paid_by_whom_it_was_ordered_for() -> None:
    assert slice_shares(5, {"a": 0}, ["b", "c"]) == {"b": 3, "c": 2}
    with pytest.raises(ValueError, match="ordered for none"):
        slice_shares(5, {}, [])
    with pytest.raises(ValueError, match="negative"):
        slice_shares(5, {"a": -1}, ["a"])
