"""Homes of tasks in pools that are on several accelerators."""

from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given, settings

from scheduler_svc.decisions.accelerators.load import Profile
from scheduler_svc.decisions.homes import Job, Move, Why, moves

A, B, C = "a", "b", "c"
SWITCHES: dict[str, float] = {A: 0.5, B: 0.5, C: 0.5}


def job(task: str, home: str | None = None, *, busy_s: float = 3.0, choices: tuple[str, ...] = (A, B), **changes: object) -> Job:
    """A sampler's job, busy for 3 of 10 s."""
    profile = Profile(f"{task}.rollout", "rollout-tiny", busy_s, away_s=7.0, steps=20)
    return replace(Job(task, "rollout", profile, choices, home, move_s=0.1), **changes)  # type: ignore[arg-type]


def done(jobs: list[Job], found: list[Move]) -> list[Job]:
    homes = {move.job.profile.job: move.accelerator for move in found}
    return [replace(one, home=homes.get(one.profile.job, one.home)) for one in jobs]


def homes(jobs: list[Job]) -> dict[str, str | None]:
    return {one.task: one.home for one in jobs}


def test_new_tasks_are_spread() -> None:
    found = moves([job("s"), job("t"), job("u"), job("v")], SWITCHES)
    assert {move.job.task: move.accelerator for move in found} == {"s": A, "t": B, "u": A, "v": B}
    assert {move.why for move in found} == {Why.FIRST}


def test_new_task_goes_where_other_pools_leave_most_room() -> None:
    other = job("other", A, choices=(A,), profile=Profile("other.rollout", "rollout-other", 9.0, 1.0))
    assert [move.accelerator for move in moves([other, job("t")], SWITCHES)] == [B]


def test_task_without_room_anywhere_has_a_home_where_the_load_is_least() -> None:
    full = [job(f"full{number}", home, busy_s=70.0) for number, home in enumerate((A, A, A, B, B))]
    found = moves([*full, job("t", busy_s=70.0, stays=True)], SWITCHES)
    assert [(move.job.task, move.accelerator) for move in found if move.why is Why.FIRST] == [("t", B)]


def test_lost_home_is_left_and_nothing_else_moves() -> None:
    jobs = [job("s", A, choices=(B, C)), job("t", B, choices=(B, C))]
    found = moves(jobs, SWITCHES)
    assert [(move.job.task, move.accelerator, move.why) for move in found] == [("s", C, Why.LOST)]


def test_task_that_may_go_nowhere_keeps_its_home() -> None:
    assert moves([job("s", A, choices=()), job("t", None, choices=())], SWITCHES) == []


def test_crowded_task_moves_one_at_a_time_until_no_move_gains() -> None:
    jobs = [job(f"t{number}", A) for number in range(6)]
    for _ in range(3):
        found = moves(jobs, SWITCHES)
        assert [(move.accelerator, move.why) for move in found] == [(B, Why.GAIN)]
        jobs = done(jobs, found)
    assert moves(jobs, SWITCHES) == []
    assert sorted(filter(None, homes(jobs).values())) == [A] * 3 + [B] * 3


def test_overloaded_accelerators_are_balanced_too() -> None:
    jobs = [job(f"t{number}", A if number < 6 else B, busy_s=14.0) for number in range(8)]
    assert [(move.accelerator, move.why) for move in moves(jobs, SWITCHES)] == [(B, Why.GAIN)]


def test_move_that_costs_more_than_it_gains_is_not_made() -> None:
    crowd = [job(f"t{number}", A) for number in range(6)]
    assert moves([replace(one, move_s=10_000.0) for one in crowd], SWITCHES) == []
    last = [replace(one, profile=replace(one.profile, steps=1), move_s=50.0) for one in crowd]
    assert moves(last, SWITCHES) == [], "a single step is left"
    assert moves([replace(one, move_s=50.0) for one in crowd], SWITCHES) != []


def test_what_others_gain_is_no_reason_to_move_a_task() -> None:
    crowd = [job(f"t{number}", A, stays=number > 0) for number in range(6)]
    ending = replace(crowd[0], profile=replace(crowd[0].profile, steps=1), move_s=50.0)
    assert moves([ending, *crowd[1:]], SWITCHES) == []


def test_task_does_not_move_where_others_lose_more_than_it_gains() -> None:
    here = [job(f"t{number}", A, busy_s=10.0, stays=number > 0) for number in range(2)]
    there = job("long", B, busy_s=7.0)
    assert [move.accelerator for move in moves([*here, there], SWITCHES)] == [B]
    assert moves([*here, replace(there, profile=replace(there.profile, steps=2000))], SWITCHES) == []


def test_task_that_moved_lately_stays() -> None:
    assert moves([job(f"t{number}", A, stays=True) for number in range(6)], SWITCHES) == []


def test_samplers_and_trainers_of_a_pool_are_placed_by_the_load_of_both() -> None:
    sampled = job("t", A, busy_s=6.0)
    trained = job("t", service="trainer", profile=Profile("t.trainer", "trainer-tiny", 1.0, 9.0, 20))
    assert [move.accelerator for move in moves([sampled, trained], SWITCHES)] == [B]


numbers = st.floats(min_value=0.05, max_value=30.0)


@st.composite
def job_sets(draw: st.DrawFn) -> list[Job]:
    found: list[Job] = []
    for number in range(draw(st.integers(1, 9))):
        choices = tuple(draw(st.lists(st.sampled_from((A, B, C)), unique=True, max_size=3)))
        service = draw(st.sampled_from(("rollout", "trainer")))
        profile = Profile(f"t{number}.{service}", f"{service}-tiny", draw(numbers), draw(numbers), draw(st.integers(1, 50)))
        home = draw(st.sampled_from((None, A, B, C)))
        found.append(Job(f"t{number}", service, profile, choices, home, draw(st.floats(0, 20)), draw(st.booleans())))
    return found


@settings(max_examples=150, deadline=None)
@given(job_sets(), st.floats(0, 5))
def test_moves_end_on_unchanged_input_and_stay_within_the_choices(jobs: list[Job], switch_s: float) -> None:
    switches: dict[str, float] = dict.fromkeys((A, B, C), switch_s)
    for look in range(200):
        found = moves(jobs, switches)
        for move in found:
            assert move.accelerator in move.job.choices and move.accelerator != move.job.home
            assert move.why is Why.GAIN or look == 0, "all have a home after the first look"
            assert move.why is not Why.GAIN or not move.job.stays
        assert len({move.job.profile.job for move in found}) == len(found)
        before, jobs = homes(jobs), done(jobs, found)
        if not found:
            break
        assert before != homes(jobs)
    else:
        raise AssertionError("tasks move for ever")
    assert all(one.home in one.choices for one in jobs if one.choices), "a lost home is left"
