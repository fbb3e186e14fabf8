"""How long a step's trajectories need the sampler, and how long they need none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.accelerators.decisions.load import MAX_TURNS, Trajectory, occupancy


def test_single_trajectory_leaves_its_sampler_for_all_of_its_environment() -> None:
    found = occupancy([Trajectory(turns=2, away_s=6.0, took_s=10.0)])
    assert (found.generate_s, found.environment_s, found.visits) == (4.0, 6.0, 2)
    found = occupancy([Trajectory(turns=2, away_s=6.0, took_s=100.0)], generate_s=4.0)
    assert (found.generate_s, found.environment_s, found.visits) == (4.0, pytest.approx(6.0, abs=0.02), 2)


def test_sampling_of_one_during_another_s_environment_is_time_of_the_accelerator() -> None:
    """First turns together from 0 to 1 s; then one from 2 to 3 s, the other from 5 to 6 s, and 4 s with its environment."""
    quick, slow = Trajectory(2, away_s=2.0, took_s=4.0), Trajectory(2, away_s=8.0, took_s=10.0)
    found = occupancy([quick, slow])
    assert (found.generate_s, found.environment_s, found.visits) == (3.0, 7.0, 3)


def test_waiting_for_other_pools_is_no_time_of_the_accelerator() -> None:
    alone = [Trajectory(2, away_s=2.0, took_s=4.0), Trajectory(2, away_s=8.0, took_s=10.0)]
    waited = [Trajectory(one.turns, one.away_s, one.took_s + 5.0) for one in alone]
    assert occupancy(waited).generate_s > 6.0, "latencies alone cannot tell"
    found = occupancy(waited, generate_s=3.0)
    assert (found.generate_s, found.environment_s, found.visits) == (3.0, pytest.approx(7.0, abs=0.05), 3)


def test_trajectories_that_are_alike_come_together() -> None:
    found = occupancy([Trajectory(3, away_s=6.0, took_s=9.0)] * 8)
    assert (found.generate_s, found.environment_s, found.visits) == (3.0, 6.0, 3)


def test_step_without_trajectories_keeps_what_was_measured() -> None:
    assert (occupancy([]).generate_s, occupancy([], 2.0).generate_s, occupancy([]).visits) == (0.0, 2.0, 1)


def test_of_many_trajectories_shortest_and_longest_are_looked_at() -> None:
    many = [Trajectory(2, away_s=1.0 + number, took_s=1.5 + number) for number in range(10 * MAX_TURNS)]
    found = occupancy(many, generate_s=100.0)
    assert found.generate_s == 100.0
    assert found.visits <= MAX_TURNS
    assert found.environment_s > 10 * MAX_TURNS - 150


def trajectory(turns: int, away_s: float, turn_s: float) -> Trajectory:
    return Trajectory(turns, away_s, away_s + turns * turn_s)


@given(st.lists(st.builds(trajectory, st.integers(1, 6), st.floats(0, 50), st.floats(0, 9)), min_size=1, max_size=9))
def test_sampling_and_the_rest_are_the_longest_trajectory(trajectories: list[Trajectory]) -> None:
    found = occupancy(trajectories)
    assert found.generate_s + found.environment_s == pytest.approx(max(one.took_s for one in trajectories), abs=1e-6)
    assert found.environment_s <= max(one.away_s for one in trajectories) + 1e-6, "so the old rule took too long a time for none"
    assert 1 <= found.visits <= sum(one.turns for one in trajectories)
