"""Who computes next on a shared accelerator: the order of the rules, and what holds for any input."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from common.accelerators import Function, Policy, Tier
from common.messages import ExecutorReport
from common.pools import Accelerator
from scheduler_svc.accelerators.decisions.slicing import next_slice, park_mode
from scheduler_svc.accelerators.decisions.state import (
    Claim,
    Demand,
    Drain,
    Freeze,
    FreezeCosts,
    Holding,
    Idle,
    Keep,
    MemoryBudget,
    Park,
    Quantiles,
    Reason,
    Rules,
    Switch,
)
from scheduler_svc.accelerators.decisions.tiers import Moves
from scheduler_svc.accelerators.snapshot import ExecutorSnapshot, drain_s, rules_of
from tests.scheduler.decisions.accelerators import NEVER_S, RULES, SWITCH_S, demand, holding, idle, moves


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
def test_training_and_scoring_are_never_interrupted_and_give_way_after_their_end_where_others_are_overdue(
    function: Function, policy: Policy
) -> None:
    running, held, rules = holding("a", running=function), demand("a", tier=Tier.DEVICE), replace(RULES, policy=policy)
    found = chosen(0.5, running, held, demand("b", ready_since_s=-1000.0), demand("c", ready_since_s=-1001.0), rules=rules)
    waits = chosen(0.5, running, held, demand("b", ready_since_s=-10.0), rules=rules)
    assert chosen(0.5, running, held, rules=rules) == Keep(NEVER_S)
    late = chosen(RULES.max_wait_s, running, held, demand("b", ready_since_s=-1000.0), demand("c", ready_since_s=-1001.0), rules=rules)
    if policy is Policy.RATIO:
        assert found == late
        assert waits == Keep(pytest.approx(RULES.max_wait_s - 10.0))
    else:
        assert found == waits == Keep(RULES.max_wait_s), "a slice of so long may be of a step that hangs"
    assert isinstance(late, Switch) and (late.executor, late.reason) == ("c", Reason.OVERDUE)
    assert drain_s(0.0, function) is None, "how the holder is ordered to park: its operation ends first"


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


def test_paused_executor_is_not_resumed_beside_others_that_have_grown_beyond_the_budget() -> None:
    grown, next_ = idle("a", tier=Tier.DEVICE, device_bytes=70), demand("b", tier=Tier.DEVICE, device_bytes=40)
    found = chosen(3.0, holding("a"), grown, next_)
    assert isinstance(found, Switch)
    assert (found.executor, found.park_to, found.reason) == ("b", (Park("a", Tier.DEVICE, Tier.HOST),), Reason.RATIO)
    assert found.expected_s > SWITCH_S / 2, "it moves the other's state"
    within = chosen(3.0, holding("a"), replace(grown, device_bytes=60), next_)
    assert isinstance(within, Switch)
    assert (within.park_to, within.reason) == ((), Reason.RESIDENT)


@pytest.mark.parametrize("policy", Policy)
def test_executor_that_an_operator_ordered_is_next_under_every_policy(policy: Policy) -> None:
    """Also without work, and beside others that have waited for longer."""
    held, oldest = demand("b", tier=Tier.DEVICE, ready_since_s=5.0), demand("c", ready_since_s=-1000.0)
    ordered, rules = demand("a", ready_since_s=12.0, work_s=0.0, is_ordered=True), replace(RULES, policy=policy)
    found = chosen(12.0, holding("b"), held, oldest, ordered, rules=rules)
    assert isinstance(found, Switch)
    assert found.executor == "a"
    assert chosen(12.0, holding("b", has_started=False), held, ordered, rules=rules) == Keep(NEVER_S), "one operation first"


def test_first_come_is_first_served() -> None:
    held, rules = demand("b", tier=Tier.DEVICE, ready_since_s=5.0), replace(RULES, policy=Policy.FCFS)
    older, oldest = demand("a", ready_since_s=4.0), demand("c", ready_since_s=3.0)
    assert chosen(12.0, holding("b"), held, older, oldest, rules=rules).executor == "c"  # type: ignore[attr-defined]
    assert chosen(12.0, holding("b"), held, demand("a", ready_since_s=6.0), rules=rules) == Keep(NEVER_S)


def test_comparison_may_bring_a_policy_of_its_own() -> None:
    found = next_slice(1.0, None, [demand("a")], moves("a"), RULES, lambda seen: Idle(seen.now_s + 7.0))
    assert found == Idle(8.0)


def test_holder_without_work_is_left_for_another_with_work() -> None:
    found = chosen(20.0, holding("a"), idle("a", tier=Tier.DEVICE), demand("b", ready_since_s=20.0))
    assert isinstance(found, Switch)
    assert (found.executor, found.reason) == ("b", Reason.RATIO)


@pytest.mark.parametrize(("memory_gib", "reported", "expected"), [(None, 90, 90), (1.0, 90, 2**30)])
def test_budget_of_a_gpu_is_what_its_executors_report(memory_gib: float | None, reported: int, expected: int) -> None:
    given = {"accelerator": "g", "pool": "p", "replica": "r", "epoch": 1, "state": "parked", "tier": "host", "host_bytes": 1, "at_s": 1.0}
    reports = [
        ExecutorReport.model_validate({**given, "executor": f"e{size}", "device_bytes": size, "budget_bytes": reported})
        for size in (40, 60)
    ]
    live = [ExecutorSnapshot(None, one, Tier.DISK) for one in reports]  # type: ignore[arg-type]
    assert rules_of(Accelerator(device="cuda:0", memory_gib=memory_gib), live).budget.device_bytes == expected


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
                is_ordered=ready is not None and draw(st.integers(0, 9)) == 0,
            )
        )
    held = None
    if holder is not None:
        awake_s = draw(SECONDS)
        running = draw(st.none() | st.sampled_from(Function))
        held = holding(holder, awake_s=awake_s, running=running, stay_since_s=awake_s, stay_switch_s=draw(st.floats(0.001, 30)))
    rules = replace(RULES, budget=MemoryBudget(draw(st.integers(20, 120)), 1000), policy=draw(st.sampled_from(Policy)))
    return now_s, held, demands, rules


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
    assert sum(by_name[name].device_bytes for name in stays) <= rules.budget.device_bytes


@given(situations())
@settings(max_examples=150, deadline=None)
def test_decision_is_not_reversed_on_unchanged_input(seen: tuple[float, Holding | None, list[Demand], Rules]) -> None:
    """Whoever was switched to keeps, before it has begun."""
    now_s, held, demands, rules = seen
    found = next_slice(now_s, held, demands, moves(*NAMES), rules)
    if not isinstance(found, Switch):
        return
    tiers = {park.executor: park.to_tier for park in found.park_to} | {found.executor: Tier.DEVICE}
    after = [replace(one, tier=tiers.get(one.executor, one.tier)) for one in demands]
    woken = holding(found.executor, awake_s=now_s, has_started=False, stay_since_s=now_s, stay_switch_s=found.expected_s)
    assert isinstance(next_slice(now_s, woken, after, moves(*NAMES), rules), Keep)
