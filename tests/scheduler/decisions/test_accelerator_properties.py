"""What holds of parking, placement and the worth of sharing for any input."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from common.accelerators import Tier
from scheduler_svc.accelerators.decisions.advice import FULL, Accelerator, place
from scheduler_svc.accelerators.decisions.load import Profile, ends_s, worth
from scheduler_svc.accelerators.decisions.state import Demand, MemoryBudget, Quantiles
from scheduler_svc.accelerators.decisions.tiers import Moves, Residents, where_to_park
from tests.scheduler.decisions.accelerators import demand

NAMES = ("a", "b", "c", "d")
DEEPER_IS_DEARER = Moves(
    {
        (name, tier, Tier.DEVICE): Quantiles(seconds, seconds)
        for name in NAMES
        for seconds, tier in enumerate((Tier.HOST, Tier.DISK, Tier.NONE))
    }
)
ROUNDING = 1e-9
APPROXIMATE = 0.01
"""Error of the queueing model."""

# -------------------------------------------------------------------------------------------------------------- parking


@st.composite
def executors(draw: st.DrawFn) -> list[Demand]:
    """The first is next."""
    return [
        demand(
            name,
            tier=draw(st.sampled_from([Tier.DEVICE, Tier.HOST, Tier.DISK, Tier.NONE])),
            device_bytes=draw(st.integers(0, 60)),
            host_bytes=draw(st.integers(0, 60)),
            deepest=draw(st.sampled_from([Tier.DEVICE, Tier.HOST, Tier.DISK, Tier.NONE])),
        )
        for name in NAMES
    ]


@given(executors(), st.integers(0, 150), st.integers(0, 150), st.dictionaries(st.sampled_from(NAMES), st.floats(0, 100)))
@settings(max_examples=400, deadline=None)
def test_parks_make_just_enough_room_within_both_budgets(
    found: list[Demand], device_bytes: int, host_bytes: int, forecast_s: dict[str, float]
) -> None:
    next_, budget, by_name = found[0], MemoryBudget(device_bytes, host_bytes), {one.executor: one for one in found}
    parks = where_to_park(next_, Residents.of(found, DEEPER_IS_DEARER, forecast_s), budget)
    others = [one for one in found[1:] if one.tier is Tier.DEVICE]
    if parks is None:
        stuck = sum(one.device_bytes for one in others if one.deepest is Tier.DEVICE)
        assert next_.device_bytes + stuck > budget.device_bytes, "it would fit beside those that may not leave"
        return
    gone = {park.executor for park in parks}
    assert gone <= {one.executor for one in others if one.deepest is not Tier.DEVICE}
    staying = next_.device_bytes + sum(one.device_bytes for one in others if one.executor not in gone)
    assert staying <= budget.device_bytes
    if parks:
        assert staying + by_name[parks[-1].executor].device_bytes > budget.device_bytes, "the last one would not have had to leave"
    to_host = [by_name[park.executor].host_bytes for park in parks if park.to_tier is Tier.HOST]
    in_host = sum(one.host_bytes for one in found if one.tier is Tier.HOST)
    assert not any(to_host) or in_host + sum(to_host) <= budget.host_bytes
    for park in parks:
        deepest = by_name[park.executor].deepest
        assert park.from_tier is Tier.DEVICE is not park.to_tier
        assert park.to_tier.depth <= max(deepest.depth, Tier.DISK.depth)


# ------------------------------------------------------------------------------------------------------------ placement


@st.composite
def jobs(draw: st.DrawFn) -> list[Profile]:
    return [
        Profile(
            f"job-{number}",
            draw(st.sampled_from("pqr")),
            busy_s=draw(st.floats(0.01, 10)),
            away_s=draw(st.floats(0, 30)),
            steps=draw(st.integers(1, 20)),
            device_bytes=draw(st.integers(0, 120)),
            host_bytes=draw(st.integers(0, 60)),
            visits=draw(st.sampled_from([1.0, 2.0, 3.5])),
        )
        for number in range(draw(st.integers(1, 8)))
    ]


@given(jobs(), st.integers(1, 4), st.randoms())
@settings(max_examples=300, deadline=None)
def test_every_job_is_placed_once_within_memory_and_load_or_waits(found: list[Profile], count: int, random: "st.RandomLike") -> None:
    budget = MemoryBudget(device_bytes=100, host_bytes=150)
    accelerators = [Accelerator(f"a{number}", budget) for number in range(count)]
    placement = place(found, accelerators)
    assert sorted([*placement.accelerators, *placement.waiting]) == sorted(one.job for one in found)
    for one in accelerators:
        own = [job for job in found if placement.accelerators.get(job.job) == one.accelerator]
        load = sum(job.busy_share for job in own)
        assert placement.expected_load[one.accelerator] == pytest.approx(load)
        assert all(job.device_bytes <= budget.device_bytes for job in own)
        assert sum({job.pool: job.host_bytes for job in own}.values()) <= budget.host_bytes
        assert len(own) <= 1 or load <= FULL + ROUNDING
    random.shuffle(accelerators)
    assert place(found, accelerators) == placement


@given(jobs(), st.floats(0, 20), st.randoms())
@settings(max_examples=300, deadline=None)
def test_worth_of_sharing_is_within_what_no_schedule_exceeds(found: list[Profile], switch_s: float, random: "st.RandomLike") -> None:
    switches = {one.pool: switch_s for one in found}
    expected = worth(found, switches)
    apart_s = sum(max(ends_s([one for one in found if one.pool == pool], {}).values()) for pool in switches)
    longest_s = max(one.steps * (one.busy_s + one.away_s) for one in found)
    least_s = max(longest_s, sum(one.steps * one.busy_s for one in found))
    assert expected.saved_share <= 1 - least_s / apart_s + APPROXIMATE
    assert expected.slowdown >= 1 - APPROXIMATE
    shuffled = list(found)
    random.shuffle(shuffled)
    assert worth(shuffled, switches) == expected
