"""The sliding minute of limits."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.messages import HttpUse
from gateway_svc.limits.refusals import duration
from gateway_svc.limits.window import SLOT_S, STREAMS_S, WINDOW_S, Use, slot_of

LIMIT = 20


@given(st.lists(st.floats(0.0, 5.0), max_size=300))
def test_no_minute_has_more_than_the_limit(pauses: list[float]) -> None:
    stored, now_s, granted = HttpUse(), 1e9, list[float]()
    for pause in pauses:
        now_s += pause
        use = Use.of(stored, now_s)
        if use.used("requests") < LIMIT:
            use.add("requests", slot_of(now_s), 1)
            granted.append(now_s)
        stored = use.message()
    for start in granted:
        assert sum(start <= at < start + WINDOW_S for at in granted) <= LIMIT


@given(st.lists(st.floats(0.0, 3.0), min_size=LIMIT, max_size=100), st.integers(1, LIMIT))
def test_wait_is_exact(pauses: list[float], amount: int) -> None:
    stored, now_s = HttpUse(), 1e9
    for pause in pauses:
        now_s += pause
        use = Use.of(stored, now_s)
        if use.used("tokens") < LIMIT:
            use.add("tokens", slot_of(now_s), 1)
        stored = use.message()
    wait_s = Use.of(stored, now_s).wait_s("tokens", amount, LIMIT)
    assert Use.of(stored, now_s + wait_s + 1e-3).used("tokens") + amount <= LIMIT
    assert wait_s == 0 or Use.of(stored, now_s + wait_s - 1e-2).used("tokens") + amount > LIMIT


def test_steady_sender_gets_its_limit() -> None:
    stored, now_s, granted = HttpUse(), 1e9, 0
    for _ in range(60_000):
        now_s += 0.01
        use = Use.of(stored, now_s)
        if use.used("requests") < 300:
            use.add("requests", slot_of(now_s), 1)
            granted += 1
            stored = use.message()
    assert granted == pytest.approx(300 * 600 / (WINDOW_S + SLOT_S), rel=0.1)


def test_what_is_given_back_late_is_not_given_back() -> None:
    use = Use.of(None, 1e9)
    use.add("tokens", slot_of(1e9), 100)
    stored = use.message()
    soon, late = Use.of(stored, 1e9 + 20), Use.of(stored, 1e9 + 70)
    for each in (soon, late):
        each.add("tokens", slot_of(1e9), -80)
    late.add("tokens", slot_of(1e9 + 70), 5)
    assert (soon.used("tokens"), late.used("tokens")) == (20, 5)


def test_replies_of_a_gateway_that_died_end() -> None:
    use = Use.of(None, 1e9)
    use.hold("a", 3)
    later = Use.of(use.message(), 1e9 + STREAMS_S / 2)
    later.hold("b", 2)
    assert later.used("streams") == 5
    assert Use.of(later.message(), 1e9 + STREAMS_S + 0.1).used("streams") == 2


def test_more_than_a_minute_allows_never_fits() -> None:
    assert math.isinf(Use.of(None, 1e9).wait_s("tokens", 101, 100))


@pytest.mark.parametrize(("seconds", "written"), [(0, "0ms"), (0.12, "120ms"), (0.9999, "1s"), (1.2, "2s"), (59.5, "1m0s"), (62, "1m2s")])
def test_durations_are_as_openai_writes_them(seconds: float, written: str) -> None:
    assert duration(seconds) == written
