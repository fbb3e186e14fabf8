"""Placement of jobs on accelerators, expected step times, and whether sharing is worth it."""

from dataclasses import replace

import pytest

from scheduler_svc.accelerators.decisions.advice import Accelerator, place
from scheduler_svc.accelerators.decisions.load import PERIODS, Profile, ends_s, step_times, worth
from scheduler_svc.accelerators.decisions.state import MemoryBudget

BUDGET = MemoryBudget(device_bytes=100, host_bytes=1000)


def job(name: str, **changes: object) -> Profile:
    """Busy for 3 of 10 s."""
    return replace(Profile(name, name, busy_s=3.0, away_s=7.0, steps=10, device_bytes=100, host_bytes=100), **changes)  # type: ignore[arg-type]


def accelerators(*jobs: tuple[Profile, ...]) -> list[Accelerator]:
    return [Accelerator(f"a{number}", BUDGET, of_one) for number, of_one in enumerate(jobs)]


def test_least_loaded_accelerator_is_taken_and_among_equals_the_one_with_its_base_model() -> None:
    found = place([job(f"j{number}") for number in range(3)], accelerators((), ()))
    assert found.accelerators == {"j0": "a0", "j1": "a1", "j2": "a0"}
    here = accelerators((job("other"),), (job("one", pool="same"),))
    assert place([job("two", pool="same")], here).accelerators == {"two": "a1"}
    assert place([job("x"), job("y")], here) == place([job("x"), job("y")], here[::-1]), "their order does not count"


def test_time_and_memory_are_limits_and_a_later_job_that_fits_is_placed() -> None:
    full = tuple(job(f"f{number}") for number in range(3))
    assert place([job("x")], accelerators(full)).waiting == ("x",)
    found = place([job("wide", device_bytes=101), job("small")], accelerators(()))
    assert (found.accelerators, found.waiting) == ({"small": "a0"}, ("wide",))
    heavy = tuple(job(f"h{number}", busy_s=0.1, host_bytes=450) for number in range(2))
    assert place([job("j0"), job("j1")], accelerators(heavy)).accelerators == {"j0": "a0"}


def test_step_alone_takes_its_own_time_and_a_full_accelerator_the_sum_of_busy_ones() -> None:
    assert step_times([job("x")], {}) == [pytest.approx(10.0)]
    many = [job(f"j{number}", pool="p") for number in range(12)]
    assert step_times(many, {})[0] == pytest.approx(36.0, rel=0.05)


def test_sharing_is_worth_it_with_gaps_and_cheap_switches_alone() -> None:
    idle = [job("x", busy_s=2.0, away_s=8.0), job("y", busy_s=2.0, away_s=8.0)]
    cheap = worth(idle, {"x": 0.01, "y": 0.01})
    assert cheap.is_worth_it
    assert cheap.saved_share == pytest.approx(0.5, abs=0.12)
    assert 1.0 <= cheap.slowdown < 1.25
    busy = [job("x", busy_s=9.0, away_s=1.0), job("y", busy_s=9.0, away_s=1.0)]
    dear = worth(busy, {"x": 5.0, "y": 5.0})
    assert not dear.is_worth_it
    assert dear.slowdown > 2
    assert worth([], {}).saved_share == 0.0


def test_short_steps_do_not_wait_for_all_of_a_long_step() -> None:
    """Pools that are busy for half of their time, as a real run's trace had them; runs saved 0.4 to 13.8 % at slowdowns of 1.55 to 1.77."""
    middle = job("middle", busy_s=1.11, away_s=1.16, steps=20, visits=2.0)
    large = job("large", busy_s=2.89, away_s=2.89, steps=8, visits=2.0)
    found = worth([middle, large], {"middle": 0.35, "large": 0.29})
    assert 0.05 < found.saved_share < 0.3
    assert 1.3 < found.slowdown < 1.7
    quick, slow = step_times([middle, large], {})
    assert quick < middle.busy_s + large.busy_s, "each of its visits waits for one of the other's"
    assert middle.busy_s / quick + large.busy_s / slow < 1


def test_accelerator_is_never_used_for_more_than_all_of_its_time() -> None:
    jobs = [job(f"j{number}", busy_s=1.0 + number, away_s=0.5, visits=1.0 + number % 3) for number in range(5)]
    use = sum(one.busy_s / seconds for one, seconds in zip(jobs, step_times(jobs, {}), strict=True))
    assert use == pytest.approx(1.0, abs=0.01)


def test_job_that_is_done_leaves_its_time_to_the_others() -> None:
    short, long = job("a", busy_s=6.0, away_s=4.0, steps=2), job("b", busy_s=6.0, away_s=4.0, steps=20)
    found = ends_s([long, short], {})
    together_s = step_times([short, long], {})[0]
    assert found["a"] == pytest.approx(2 * together_s, rel=0.1)
    assert found["b"] == pytest.approx(found["a"] + 18 * 10.0, rel=0.05)
    assert ends_s([short], {}) == {"a": pytest.approx(20.0)}


def test_many_jobs_end_as_few_periods_say() -> None:
    def mean_end(count: int) -> float:
        ends = ends_s(
            [job(f"j{number}", pool=f"p{number % 2}", busy_s=3.0 / count, away_s=3.0, steps=10 + number % 7) for number in range(count)], {}
        )
        assert len(ends) == count
        return sum(ends.values()) / count

    assert mean_end(4 * PERIODS) == pytest.approx(mean_end(PERIODS // 2), rel=0.05)


def test_switches_are_of_visits_that_follow_another_pool() -> None:
    alone = [job("x", pool="p"), job("y", pool="p")]
    assert step_times(alone, {"p": 5.0}) == step_times(alone, {}), "its pool was there last"
    rare = job("rare", busy_s=0.01, away_s=1000.0)
    often = job("often", busy_s=1.0, away_s=1.0)
    [first, _] = step_times([often, rare], {"often": 5.0, "rare": 5.0})
    assert first < 2.2, "hardly any of its visits follows one of the other"
