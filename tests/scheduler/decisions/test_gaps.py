"""Time until a pool has work again: from open members and environment times, and from observed gaps where nothing is known of those."""

import math
from bisect import bisect_right

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from common.accelerators.away import Away, TaskAway
from scheduler_svc.decisions.accelerators.gaps import KEPT, SILENT_S, Gaps
from scheduler_svc.decisions.accelerators.prediction import HORIZON_S, KNOTS, Latencies, OpenWork, gap
from scheduler_svc.decisions.accelerators.state import Quantiles

ALWAYS, NEVER = 100, 0


def p50_s(found: Quantiles | None) -> float:
    assert found is not None
    assert found.p50_s <= found.p90_s <= HORIZON_S
    return found.p50_s


def away_task(task: str, *left_ms: tuple[int, int], **changes: object) -> TaskAway:
    """Turns that left so many milliseconds ago and are followed by others in so many of a hundred cases, after 10 s."""
    values: dict[str, object] = {
        "members": len(left_ms),
        "left_ms": left_ms,
        "sent_ms": min((ago_ms for ago_ms, _ in left_ms), default=None),
        "opening_ms": None,
        "returned_ms": (10_000,),
        "opened_ms": (),
    }
    return TaskAway(task, **(values | changes))  # type: ignore[arg-type]


def idle_gaps(*away: TaskAway, sampled: bool = True, trained: bool = True) -> Gaps:
    """Pool `p`, without work since 100, and with a report of 100."""
    gaps = Gaps(["p"] if sampled else [], ["p"] if trained else [])
    gaps.observe("p", 100.0, has_work=False)
    gaps.members("p", "s", 100.0, away)
    return gaps


# ------------------------------------------------------------------------------------------------------------- waits


def test_gap_ends_with_the_first_wait() -> None:
    fast, slow = Latencies.of([10.0] * 9 + [12.0]), Latencies.of([100.0])
    assert p50_s(gap(4.0, [OpenWork(fast, (0.0,))])) == pytest.approx(6.0)
    assert p50_s(gap(4.0, [OpenWork(fast, (0.0, 3.0)), OpenWork(slow, (0.0,))])) == pytest.approx(6.0)
    assert gap(4.0, [OpenWork(Latencies(()), (0.0,)), OpenWork(fast, ())]) is None
    assert gap(4.0, []) is None


def test_more_members_return_sooner() -> None:
    even = Latencies.of([float(second) for second in range(1, 33)])
    alone, four, many = (p50_s(gap(0.0, [OpenWork(even, (0.0,), waits=waits)])) for waits in (1, 4, 64))
    assert (alone, four, many) == (16.0, 6.0, 1.0)  # 1 - (1 - t / 32)^4 ≥ 1/2 from t = 5.1


def test_longer_wait_than_ever_seen_is_expected_to_last_by_its_age() -> None:
    late = gap(200.0, [OpenWork(Latencies.of([10.0]), (0.0,))])
    assert p50_s(late) == pytest.approx(69.3, rel=0.02)  # ln 2 of half its age


def test_wait_that_may_never_end_counts_less_the_longer_it_lasts() -> None:
    """Half of these turns are last ones: of those that are away for longer than most that returned, hardly any comes back."""
    known = Latencies.of([float(second) for second in range(1, 11)])
    early, late = gap(0.0, [OpenWork(known, (0.0,), (0.5,))]), gap(9.5, [OpenWork(known, (0.0,), (0.5,))])
    assert p50_s(early) == pytest.approx(10.0)
    assert p50_s(late) == HORIZON_S
    assert p50_s(gap(0.0, [OpenWork(known, (0.0,), (0.0,))])) == HORIZON_S


seconds = st.floats(0.01, 100, allow_nan=False)
works = st.builds(
    lambda times, ages_chances, more: (times, ages_chances, more),
    st.lists(seconds, min_size=1, max_size=40),
    st.lists(st.tuples(st.floats(0, 300), st.floats(0, 1)), min_size=1, max_size=4),
    st.integers(0, 9),
)


@settings(deadline=None)
@given(st.lists(works, min_size=1, max_size=5))
def test_gap_is_the_quantile_of_the_product(drawn: list[tuple[list[float], list[tuple[float, float]], int]]) -> None:
    """Against P(gap > t) = Π P(wait > t) at the times around it, where all waits are within what was observed."""
    now_s = 1000.0
    waits = [(Latencies.of(times), [(age, chance) for age, chance in ages if age < max(times)], more) for times, ages, more in drawn]
    found = gap(
        now_s,
        [
            OpenWork(one, tuple(now_s - age for age, _ in ages), tuple(chance for _, chance in ages), len(ages) + more)
            for one, ages, more in waits
        ],
    )

    def survival(after_s: float) -> float:
        left = 1.0
        for one, ages, more in waits:
            for age, chance in ages:
                age = now_s - (now_s - age)
                count, longer = len(one.ordered_s), len(one.ordered_s) - bisect_right(one.ordered_s, age)
                still = len([each for each in one.ordered_s if each > age and each - age > after_s])
                comes = chance * longer / count / (chance * longer / count + 1 - chance) if chance < 1 else 1.0
                left *= (1 - comes * (1 - still / longer)) ** ((len(ages) + more) / len(ages))
        return left

    if found is None:
        assert not any(ages for _, ages, _ in waits)
        return
    assert all(len(one.ordered_s) <= KNOTS for one, _, _ in waits)
    for at_s, level in ((found.p50_s, 0.5), (found.p90_s, 0.1)):
        if at_s < HORIZON_S:
            assert survival(at_s + 1e-9) <= level + 1e-6
        assert survival(at_s - 1e-9) > level - 1e-6 or at_s < 1e-6


# ------------------------------------------------------------------------------------------------------------- pools


def test_gap_shrinks_as_members_are_away_and_their_report_is_older() -> None:
    gaps = idle_gaps(away_task("a", (4000, ALWAYS)))
    assert p50_s(gaps.expected("p", 100.0)) == pytest.approx(6.0)
    assert p50_s(gaps.expected("p", 103.0)) == pytest.approx(3.0)
    assert gaps.expected("unknown", 103.0) is None


def test_beside_work_of_the_pools_other_executor_members_are_expected_and_observed_gaps_say_nothing() -> None:
    gaps = idle_gaps(away_task("a", (4000, ALWAYS)))
    gaps.observe("p", 103.0, has_work=True)
    assert p50_s(gaps.expected("p", 103.0)) == pytest.approx(3.0)
    gaps.members("p", "s", 103.0, [])
    assert gaps.expected("p", 103.0) is None


def test_members_say_more_than_observed_gaps() -> None:
    """The pool was idle for a second each time; now its only member is with a tool that takes ten."""
    gaps = Gaps(["p"], ["p"])
    for at_s in range(10):
        gaps.observe("p", 10.0 * at_s, has_work=False)
        gaps.observe("p", 10.0 * at_s + 1, has_work=True)
    gaps.observe("p", 100.0, has_work=False)
    assert p50_s(gaps.expected("p", 100.0)) == pytest.approx(1.0)
    gaps.members("p", "s", 100.0, [])  # of an older sampler
    assert p50_s(gaps.expected("p", 100.0)) == pytest.approx(1.0)
    gaps.members("p", "s", 100.0, [away_task("a", (0, ALWAYS))])
    assert p50_s(gaps.expected("p", 100.0)) == pytest.approx(10.0)


def test_task_of_which_nothing_was_observed_is_expected_like_the_others() -> None:
    gaps = idle_gaps(away_task("new", (0, ALWAYS), returned_ms=()), away_task("old", returned_ms=(20_000,)))
    assert p50_s(gaps.expected("p", 100.0)) == pytest.approx(20.0)


def test_step_of_single_turns_is_expected_from_batches_before() -> None:
    """Both members' last turns have no next one; after their last one was sent, the batch took 7 s, and 3 s of these have passed."""
    gaps = idle_gaps(away_task("a", (0, NEVER), (500, NEVER), returned_ms=()))
    assert gaps.expected("p", 100.0) is None
    gaps.batched("p", "a", 4, 107.0)
    gaps.batched("p", "a", 4, 150.0)  # it is told each second
    gaps.members("p", "s", 153.0, [away_task("a", (3000, NEVER), (9000, NEVER), returned_ms=())])
    assert p50_s(gaps.expected("p", 153.0)) == pytest.approx(4.0)
    gaps.batched("p", "a", 5, 156.0)
    assert gaps.expected("p", 156.0) is None  # its batch is there


def test_announced_version_ends_the_wait_for_a_batch_and_opens_the_next_step() -> None:
    """Also where nobody has told of its batch yet, which would be expected half a second from now."""
    gaps = idle_gaps(away_task("a", (0, NEVER), returned_ms=()))
    gaps.batched("p", "a", 0, 107.0)
    done = away_task("a", sent_ms=6500, opening_ms=1000, opened_ms=(3000,), returned_ms=(), members=0)
    gaps.members("p", "s", 120.0, [done])
    assert p50_s(gaps.expected("p", 120.0)) == pytest.approx(2.0)


def test_samplers_and_trainers_on_accelerators_of_their_own_wait_for_their_own_work() -> None:
    for sampled, trained, expected_s in ((True, False, 10.0), (False, True, 7.0), (True, True, 7.0)):
        gaps = idle_gaps(away_task("a", (0, ALWAYS)), sampled=sampled, trained=trained)
        gaps.batched("p", "a", 0, 107.0)
        gaps.members("p", "s", 110.0, [away_task("a", (0, ALWAYS))])
        assert p50_s(gaps.expected("p", 110.0)) == pytest.approx(expected_s)


def test_members_of_two_samplers_count_together_and_those_of_a_silent_one_not() -> None:
    gaps = idle_gaps(away_task("a", (0, ALWAYS)))
    gaps.members("p", "other", 100.0, [away_task("b", (8000, ALWAYS))])
    assert p50_s(gaps.expected("p", 100.0)) == pytest.approx(2.0)
    later_s = 100.0 + SILENT_S + 1
    gaps.members("p", "s", later_s, [away_task("a", (0, ALWAYS))])
    assert p50_s(gaps.expected("p", later_s)) == pytest.approx(10.0)


def test_members_of_another_accelerators_sampler_return_to_it_and_their_batch_comes_here() -> None:
    for sampled, expected_s in ((True, 10.0), (False, 3.0)):
        gaps = idle_gaps(away_task("a", (0, ALWAYS)), sampled=sampled, trained=not sampled)
        gaps.members("p", "other", 90.0, [away_task("b", (0, NEVER))], is_here=False)
        gaps.batched("p", "b", 0, 93.0)
        gaps.members("p", "other", 100.0, [away_task("b", (8000, ALWAYS), sent_ms=0)], is_here=False)
        assert p50_s(gaps.expected("p", 100.0)) == pytest.approx(expected_s)


@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_task_that_two_samplers_report_keeps_what_the_one_here_has_timed(order: tuple[bool, bool]) -> None:
    """It has moved here; the other knows of slower times, or of none, and reports before or after this one."""
    for theirs in ((60_000,), ()):
        gaps = idle_gaps(trained=False)
        for is_here in order:
            own = away_task("a", (4000, ALWAYS), opened_ms=(2000,)) if is_here else away_task("a", returned_ms=theirs, opened_ms=theirs)
            gaps.members("p", f"here: {is_here}", 100.0, [own], is_here=is_here)
        assert p50_s(gaps.expected("p", 100.0)) == pytest.approx(6.0)
    gaps.members("p", "here: True", 100.0, [away_task("a", (4000, ALWAYS), returned_ms=())])
    assert p50_s(gaps.expected("p", 100.0)) == pytest.approx(6.0), "a sampler that began anew has timed nothing yet"


def test_batch_of_a_task_that_two_samplers_report_is_one_wait() -> None:
    """With two, the earlier of two batches would be expected."""
    gaps = idle_gaps(sampled=False)
    for number in range(1, 9):
        gaps.members("p", "old", 1000.0 * number, [away_task("a", (0, NEVER))], is_here=False)
        gaps.batched("p", "a", number, 1000.0 * number + 10 * number)
    gaps.members("p", "old", 9000.0, [away_task("a", (0, NEVER), sent_ms=5000)], is_here=False)
    gaps.members("p", "new", 9000.0, [away_task("a", (0, NEVER))])
    assert p50_s(gaps.expected("p", 9000.0)) == pytest.approx(40.0)
    gaps.members("p", "new", 9000.0, [away_task("a", sent_ms=0, opening_ms=0)])
    assert gaps.expected("p", 9000.0) is not None
    gaps.members("p", "new", 9001.0, [away_task("a", sent_ms=1000, opening_ms=500)])
    assert gaps.expected("p", 9001.0) is None, "its step was trained, although the old one reports no opening"


def test_tasks_that_nobody_reports_any_more_are_forgotten() -> None:
    gaps = idle_gaps()
    for number in range(3 * KEPT):
        gaps.members("p", "s", 100.0 + number, [away_task(f"t{number}", (0, ALWAYS))])
    assert len(gaps._pools["p"].tasks) <= KEPT + 1


reported = st.builds(
    lambda task, left, sent_ms, opening_ms, returned, opened, more: TaskAway(
        f"t{task}", len(left) + more, tuple(left), sent_ms, opening_ms, tuple(sorted(returned)), tuple(sorted(opened))
    ),
    st.integers(0, 4),
    st.lists(st.tuples(st.integers(0, 700_000), st.integers(0, 100)), max_size=4),
    st.none() | st.integers(0, 700_000),
    st.none() | st.integers(0, 700_000),
    st.lists(st.integers(0, 700_000), max_size=8),
    st.lists(st.integers(0, 700_000), max_size=8),
    st.integers(0, 100),
)
events = st.lists(
    st.tuples(st.sampled_from(["members", "batched", "idle", "works"]), st.lists(reported, max_size=4), st.integers(0, 9)), max_size=25
)


@settings(deadline=None)
@given(events)
def test_any_reports_give_quantiles_in_order_and_equal_ones_the_same(drawn: list[tuple[str, list[TaskAway], int]]) -> None:
    def play() -> list[Quantiles | None]:
        gaps, now_s, found = Gaps(["p"], ["p"]), 1000.0, list[Quantiles | None]()
        for what, away, number in drawn:
            now_s += number
            if what == "members":
                gaps.members("p", f"s{number % 2}", now_s, away)
            elif what == "batched":
                gaps.batched("p", f"t{number % 5}", number, now_s - 1)
            else:
                gaps.observe("p", now_s, has_work=what == "works")
            found.append(gaps.expected("p", now_s))
        return found

    found = play()
    assert found == play()
    for one in found:
        if one is not None:
            assert 0 <= one.p50_s <= one.p90_s <= HORIZON_S and math.isfinite(one.p50_s)


def test_predictions_of_what_a_sampler_reports_are_calibrated() -> None:
    """A task of one member and many turns, whose environment takes 1 to 20 s with equal chances: half of the gaps are longer than p50."""
    now_s = 1000.0
    away, gaps = Away(lambda: now_s), Gaps(["p"], ["p"])
    longer = count = 0
    for turn in range(1, 241):
        away.sent("a", 0, 0, [(0, 0)])
        seconds = float(1 + 7 * turn % 20)
        gaps.observe("p", now_s, has_work=False)
        gaps.members("p", "s", now_s, away.report(now_s))
        found = gaps.expected("p", now_s)
        if turn > 40:
            longer, count = longer + (seconds > p50_s(found)), count + 1
        now_s += seconds
        away.came("a", 0, 0, [(0, 1)], now_s)
        gaps.observe("p", now_s, has_work=True)
    assert 0.35 < longer / count < 0.65
