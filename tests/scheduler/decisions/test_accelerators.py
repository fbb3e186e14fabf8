"""Decisions about shared accelerators: order of the rules, tiers within budgets, predictions, booking."""

from dataclasses import replace
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from scheduler_svc.decisions.accelerators.moves import Moves, Rates, measured, prior_s
from scheduler_svc.decisions.accelerators.prediction import Estimate, Latencies, OpenStep, Piece, expected, gap
from scheduler_svc.decisions.accelerators.slice_shares import slice_shares
from scheduler_svc.decisions.accelerators.slicing import next_slice, park_mode
from scheduler_svc.decisions.accelerators.state import (
    Budget,
    Claim,
    Demand,
    Drain,
    Freeze,
    FreezeCosts,
    Function,
    Holding,
    Idle,
    Keep,
    Park,
    Policy,
    Quantiles,
    Reason,
    Rules,
    Switch,
    Tier,
)
from scheduler_svc.decisions.accelerators.tiers import Forecast, Residents, prefetch, where_to_park

SWITCH_S = 2.0
"""Of every switch below between executors of which one fits on the device: a second to park and one to wake."""
RULES = Rules(Budget(device_bytes=100, host_bytes=1000))
NEVER_S = float("inf")


def demand(name: str, **changes: object) -> Demand:
    """An executor in host memory with three seconds of work that was ready at 0, which fills the device."""
    values: dict[str, object] = {
        "executor": name,
        "pool": name,
        "function": Function.TRAIN,
        "tier": Tier.HOST,
        "device_bytes": 100,
        "host_bytes": 100,
        "deepest": Tier.DISK,
        "ready_since_s": 0.0,
        "parked_since_s": -NEVER_S,
        "work_s": 3.0,
    }
    return Demand(**(values | changes))  # type: ignore[arg-type]


def idle(name: str, **changes: object) -> Demand:
    return demand(name, **{"ready_since_s": None, "work_s": 0.0} | changes)


def holding(name: str, **changes: object) -> Holding:
    values: dict[str, object] = {
        "executor": name,
        "awake_s": 0.0,
        "switch_s": SWITCH_S,
        "running": None,
        "has_started": True,
        "stay_since_s": 0.0,
        "stay_switch_s": SWITCH_S,
    }
    return Holding(**(values | changes))  # type: ignore[arg-type]


def moves(*names: str) -> Moves:
    """A second to park in host memory or to wake from it, four to wake from disk."""
    durations = {(Tier.DEVICE, Tier.HOST): 1.0, (Tier.HOST, Tier.DEVICE): 1.0, (Tier.DEVICE, Tier.DISK): 0.1, (Tier.DISK, Tier.DEVICE): 4.0}
    return Moves({(name, *between): Quantiles(seconds, seconds) for name in names for between, seconds in durations.items()})


def chosen(now_s: float, held: Holding | None, *demands: Demand, rules: Rules = RULES) -> object:
    return next_slice(now_s, held, demands, moves(*(one.executor for one in demands)), rules)


# ------------------------------------------------------------------------------------------------------- next_slice


def test_free_accelerator_goes_to_the_highest_ratio() -> None:
    short, long = demand("long", work_s=30.0), demand("short", work_s=1.0)
    found = chosen(10.0, None, short, long)
    assert isinstance(found, Switch)
    assert (found.executor, found.reason, found.park_to) == ("short", Reason.FIRST, ())


def test_nothing_ready_is_idle() -> None:
    assert chosen(10.0, None, idle("a"), idle("b")) == Idle(NEVER_S)
    assert chosen(10.0, None) == Idle(NEVER_S)


@pytest.mark.parametrize("function", [Function.TRAIN, Function.SCORE])
@pytest.mark.parametrize("policy", Policy)
def test_training_and_scoring_are_never_interrupted(function: Function, policy: Policy) -> None:
    overdue = demand("b", ready_since_s=-1000.0)
    assert chosen(0.5, holding("a", running=function), demand("a", tier=Tier.DEVICE), overdue, rules=replace(RULES, policy=policy)) == Keep(
        NEVER_S
    )


def test_longest_wait_past_the_maximum_goes_before_residency_and_ratio() -> None:
    held = demand("a", tier=Tier.DEVICE, work_s=100.0)
    waiting = [demand("b", ready_since_s=-60.0, work_s=50.0), demand("c", ready_since_s=-70.0, work_s=90.0)]
    found = chosen(1.0, holding("a"), held, *waiting)
    assert isinstance(found, Switch)
    assert (found.executor, found.reason) == ("c", Reason.OVERDUE)


def test_woken_executor_does_one_operation_before_an_overdue_one() -> None:
    held, waiting = demand("a", tier=Tier.DEVICE), demand("b", ready_since_s=-100.0)
    assert chosen(0.0, holding("a", has_started=False), held, waiting) == Keep(NEVER_S)
    sampler = replace(held, function=Function.GENERATE)
    assert chosen(0.0, holding("a", has_started=False), sampler, waiting) == Keep(pytest.approx(0.001)), "its requests may be frozen"


def test_wait_begins_anew_with_the_end_of_a_slice() -> None:
    held = demand("a", tier=Tier.DEVICE, ready_since_s=-200.0)
    served = demand("b", ready_since_s=-100.0, parked_since_s=-1.0)
    assert isinstance(chosen(1.0, holding("a"), held, served), Keep)


def test_holder_with_work_keeps_for_its_residency() -> None:
    held, waiting = demand("a", tier=Tier.DEVICE), demand("b", ready_since_s=-40.0)
    assert chosen(7.9, holding("a"), held, waiting) == Keep(pytest.approx(8.0))
    after = chosen(8.1, holding("a"), held, waiting)
    assert isinstance(after, Switch)
    assert after.reason is Reason.RATIO


def test_until_a_residency_is_over_executors_on_the_device_follow_each_other() -> None:
    small = {"device_bytes": 50, "pool": "x", "tier": Tier.DEVICE}
    found = chosen(3.0, holding("sampler"), idle("sampler", **small), demand("trainer", **small), demand("other", ready_since_s=-50.0))
    assert isinstance(found, Switch)
    assert (found.executor, found.reason, found.park_to) == ("trainer", Reason.RESIDENT, ())


def test_hysteresis_keeps_a_holder_that_is_hardly_worse() -> None:
    held = demand("a", tier=Tier.DEVICE, ready_since_s=20.0)
    other = demand("b", ready_since_s=15.9)  # ratios: 3 / 3, and (4.1 + 3) / (3 + 2) = 1.42
    assert isinstance(chosen(20.0, holding("a"), held, other, rules=replace(RULES, hysteresis=1.4)), Switch)
    kept = chosen(20.0, holding("a"), held, other, rules=replace(RULES, hysteresis=1.5))
    assert kept == Keep(pytest.approx(20.4))  # then the ratio is 1.5


def test_idle_holder_is_kept_while_its_next_work_is_sooner_than_half_a_switch() -> None:
    soon, later = idle("a", tier=Tier.DEVICE, gap=Quantiles(0.5, 1.0)), idle("a", tier=Tier.DEVICE, gap=Quantiles(1.5, 3.0))
    waiting = demand("b", ready_since_s=20.0)
    assert chosen(20.0, holding("a", idle_since_s=20.0), soon, waiting) == Idle(pytest.approx(21.0))
    assert isinstance(chosen(20.0, holding("a", idle_since_s=20.0), later, waiting), Switch)
    assert isinstance(chosen(21.0, holding("a", idle_since_s=20.0), soon, waiting), Switch), "it waits for half a switch in all"


def test_work_that_fits_a_gap_goes_before_a_higher_ratio() -> None:
    held = idle("a", tier=Tier.DEVICE, gap=Quantiles(8.0, 9.0))  # room for 5.3 s: two switches, and 1.3 s of work
    large, small = demand("b", work_s=30.0, ready_since_s=-20.0), demand("c", work_s=1.0, ready_since_s=20.0)
    found = chosen(20.0, holding("a", idle_since_s=20.0), held, large, small)
    assert isinstance(found, Switch)
    assert (found.executor, found.reason) == ("c", Reason.BACKFILL)
    short = replace(held, gap=Quantiles(7.4, 9.0))  # 1.5 × (2 + 1 + 2) s are 7.5
    too_short = chosen(20.0, holding("a", idle_since_s=20.0), short, large, small)
    assert isinstance(too_short, Switch)
    assert (too_short.executor, too_short.reason) == ("b", Reason.RATIO)
    without = chosen(20.0, holding("a", idle_since_s=20.0), held, large, small, rules=replace(RULES, backfill=None))
    assert isinstance(without, Switch)
    assert without.executor == "b"


def test_tenant_that_is_ahead_of_its_share_waits() -> None:
    ahead = demand("a", work_s=1.0, claims=(Claim("x", 1.0, 116.0, 0.0),))
    behind = demand("b", work_s=50.0, claims=(Claim("y", 1.0, 100.0, 0.0),))
    assert chosen(1.0, None, ahead, behind).executor == "b"  # type: ignore[attr-defined]
    assert chosen(1.0, None, replace(ahead, claims=(Claim("x", 1.0, 114.0, 0.0),)), behind).executor == "a"  # type: ignore[attr-defined]


def test_pool_that_is_ahead_of_its_tenants_others_waits() -> None:
    ahead = demand("a", work_s=1.0, claims=(Claim("x", 1.0, 100.0, 80.0),))
    behind = demand("b", work_s=50.0, claims=(Claim("x", 1.0, 100.0, 20.0),))
    assert chosen(1.0, None, ahead, behind).executor == "b"  # type: ignore[attr-defined]


def test_what_does_not_fit_the_device_at_all_is_never_chosen() -> None:
    assert chosen(1000.0, None, demand("a", device_bytes=101)) == Idle(NEVER_S)


def test_baselines_follow_their_order() -> None:
    held = demand("b", tier=Tier.DEVICE, ready_since_s=5.0)
    older, oldest = demand("a", ready_since_s=4.0), demand("c", ready_since_s=3.0)
    found = {policy: chosen(12.0, holding("b"), held, older, oldest, rules=replace(RULES, policy=policy)) for policy in Policy}
    assert found[Policy.FCFS].executor == "c"  # type: ignore[attr-defined]
    assert found[Policy.ROUND_ROBIN].executor == "c"  # type: ignore[attr-defined]
    assert found[Policy.STATIC] == Keep(20.0)  # the second window is of pool b
    assert chosen(21.0, holding("b"), held, older, oldest, rules=replace(RULES, policy=Policy.STATIC)).executor == "c"  # type: ignore[attr-defined]
    kept = chosen(9.0, holding("b"), held, older, rules=replace(RULES, policy=Policy.ROUND_ROBIN))
    assert kept == Keep(10.0)


def test_requests_drain_while_nobody_is_overdue_and_freeze_after_their_progress() -> None:
    left, costs = Quantiles(20.0, 30.0), FreezeCosts(SWITCH_S)
    assert park_mode(None, 1.0, 0.0, costs, RULES) == Drain(0.0)
    assert park_mode(left, 1.0, 50.0, costs, RULES) == Drain(50.0)
    assert park_mode(Quantiles(5.0, 6.0), 1.0, -3.0, costs, RULES) == Drain(8.0)
    assert park_mode(left, 0.5, 0.0, costs, RULES) == Drain(3.5)
    assert park_mode(left, 0.5, 0.0, FreezeCosts(SWITCH_S, again_s=1.0), RULES) == Drain(5.5)
    assert park_mode(left, 4.5, 0.0, costs, RULES) == Freeze()
    assert park_mode(left, 0.5, 0.0, FreezeCosts(0.0), RULES) == Drain(0.5)
    assert park_mode(left, 4.5, 0.0, costs, replace(RULES, policy=Policy.FCFS)) == Drain(NEVER_S)


# ------------------------------------------------------------------------------------- any input, each property


NAMES = ("a", "b", "c", "d")
SECONDS = st.floats(0, 200, allow_nan=False)


@st.composite
def situations(draw: st.DrawFn) -> tuple[float, Holding | None, list[Demand], Rules]:
    now_s = draw(st.floats(200, 300))
    holder = draw(st.none() | st.sampled_from(NAMES))
    demands: list[Demand] = []
    for name in NAMES:
        claims = tuple(Claim(tenant, 1.0, draw(SECONDS), draw(SECONDS)) for tenant in draw(st.sets(st.sampled_from("xyz"), max_size=2)))
        ready = draw(st.none() | SECONDS)
        middle = draw(st.none() | st.floats(0.01, 50))
        demands.append(
            demand(
                name,
                pool=name if draw(st.booleans()) else "shared",
                function=draw(st.sampled_from(Function)),
                tier=Tier.DEVICE if name == holder else draw(st.sampled_from([Tier.DEVICE, Tier.HOST, Tier.DISK])),
                device_bytes=draw(st.integers(1, 40)),
                ready_since_s=ready,
                parked_since_s=draw(SECONDS),
                work_s=0.0 if ready is None else draw(st.floats(0.001, 50)),
                claims=claims,
                gap=None if middle is None else Quantiles(middle, 2 * middle),
            )
        )
    held = None
    if holder is not None:
        awake_s = draw(SECONDS)
        running = draw(st.none() | st.sampled_from(Function))
        held = holding(holder, awake_s=awake_s, running=running, stay_since_s=awake_s, stay_switch_s=draw(st.floats(0.001, 30)))
    return now_s, held, demands, replace(RULES, budget=Budget(draw(st.integers(20, 120)), 1000), policy=draw(st.sampled_from(Policy)))


@given(situations(), st.permutations(range(len(NAMES))))
@settings(max_examples=150, deadline=None)
def test_decision_does_not_depend_on_the_order_of_its_input(
    seen: tuple[float, Holding | None, list[Demand], Rules], order: list[int]
) -> None:
    now_s, held, demands, rules = seen
    known = moves(*NAMES)
    shuffled = Moves(dict(reversed(list(known.measured.items()))))
    assert next_slice(now_s, held, demands, known, rules) == next_slice(now_s, held, [demands[one] for one in order], shuffled, rules)


@given(situations())
@settings(max_examples=150, deadline=None)
def test_switch_fits_the_device_names_ready_work_and_is_looked_at_later_otherwise(
    seen: tuple[float, Holding | None, list[Demand], Rules],
) -> None:
    now_s, held, demands, rules = seen
    found = next_slice(now_s, held, demands, moves(*NAMES), rules)
    if not isinstance(found, Switch):
        assert found.until_s > now_s
        return
    by_name = {one.executor: one for one in demands}
    assert by_name[found.executor].ready_since_s is not None
    assert held is None or found.executor != held.executor
    stays = {one.executor for one in demands if one.tier is Tier.DEVICE} - {park.executor for park in found.park_to} | {found.executor}
    assert sum(by_name[name].device_bytes for name in stays) <= max(
        rules.budget.device_bytes, sum(one.device_bytes for one in demands if one.tier is Tier.DEVICE)
    )


@given(situations())
@settings(max_examples=150, deadline=None)
def test_decision_is_not_reversed_on_unchanged_input(seen: tuple[float, Holding | None, list[Demand], Rules]) -> None:
    """Whoever was switched to keeps, before it has begun."""
    now_s, held, demands, rules = seen
    found = next_slice(now_s, held, demands, moves(*NAMES), rules)
    if not isinstance(found, Switch) or rules.policy is Policy.STATIC:
        return
    tiers = {park.executor: park.to_tier for park in found.park_to} | {found.executor: Tier.DEVICE}
    after = [replace(one, tier=tiers.get(one.executor, one.tier)) for one in demands]
    woken = holding(found.executor, awake_s=now_s, has_started=False, stay_since_s=now_s, stay_switch_s=found.expected_s)
    assert isinstance(next_slice(now_s, woken, after, moves(*NAMES), rules), Keep)


@given(situations())
@settings(max_examples=150, deadline=None)
def test_backfill_is_back_within_the_gap(seen: tuple[float, Holding | None, list[Demand], Rules]) -> None:
    now_s, held, demands, rules = seen
    found = next_slice(now_s, held, demands, moves(*NAMES), replace(rules, policy=Policy.RATIO))
    if isinstance(found, Switch) and found.reason is Reason.BACKFILL:
        assert held is not None
        own = next(one for one in demands if one.executor == held.executor)
        filler = next(one for one in demands if one.executor == found.executor)
        assert own.gap is not None
        assert own.gap.p50_s > 1.5 * (found.expected_s + filler.work_s)


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


def test_prefetch_takes_the_soonest_that_gains_by_it() -> None:
    on_disk, in_host = idle("a", tier=Tier.DISK), idle("b")
    forecasts = [Forecast(in_host, 1.0), Forecast(on_disk, 2.0)]
    known = Moves(moves("a", "b").measured, Rates(fixed_s=1.0))
    assert prefetch(forecasts, residents(on_disk, in_host), RULES.budget, known) == Park("a", Tier.DISK, Tier.HOST)
    assert prefetch(forecasts, residents(on_disk, in_host), Budget(100, 150), known) is None
    assert prefetch([Forecast(in_host, 1.0)], residents(in_host), RULES.budget, known) is None


# ------------------------------------------------------------------------------------------------------- prediction


def test_first_observation_replaces_the_prior_and_later_ones_are_smoothed() -> None:
    estimate = Estimate(1.0).after(10.0)
    assert estimate == Estimate(10.0, 0.0, 1)
    assert estimate.after(20.0).mean_s == pytest.approx(12.0)
    assert Estimate(1.0).after(0.0).mean_s > 0


def test_expected_work_adds_up_and_a_batch_is_faster() -> None:
    estimates = {("a", Function.GENERATE): Estimate(4.0, 1.0, 5)}
    prior = {Function.GENERATE: Estimate(2.0)}
    pieces = [Piece("a", Function.GENERATE), Piece("new", Function.GENERATE)]
    assert expected(pieces, estimates, prior).p50_s == pytest.approx(6.0)
    assert expected(pieces, estimates, prior, float).p50_s == pytest.approx(3.0)
    assert expected([], estimates, prior).p50_s > 0
    assert expected(pieces, estimates, prior).p90_s == pytest.approx(6.0 + 1.2816)


def test_gap_is_that_of_the_first_step_whose_last_member_returns() -> None:
    known = {"fast": Latencies.of([10.0] * 9 + [12.0]), "slow": Latencies.of([100.0])}
    assert gap(4.0, [OpenStep("fast", (0.0,))], known).p50_s == pytest.approx(6.0, abs=0.1)  # type: ignore[union-attr]
    both = [OpenStep("fast", (0.0, 3.0)), OpenStep("slow", (0.0,))]
    assert gap(4.0, both, known).p50_s == pytest.approx(9.0, abs=0.2)  # type: ignore[union-attr]
    assert gap(4.0, [OpenStep("unknown", (0.0,))], known) is None
    assert gap(4.0, [], known) is None


def test_longer_wait_than_ever_seen_is_expected_to_last_by_its_age() -> None:
    late = gap(200.0, [OpenStep("fast", (0.0,))], {"fast": Latencies.of([10.0])})
    assert late is not None
    assert late.p50_s == pytest.approx(69.3, rel=0.02)  # ln 2 of half its age


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
