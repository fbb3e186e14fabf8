"""The trainer's benchmarks: their measurements are of the real step."""

import numpy as np
import pytest

from bench import memory, shared_steps
from bench.harness.load.trajectories import Lengths, make_groups


def test_made_up_trajectories_have_the_turns_that_were_asked_for() -> None:
    (group, _) = make_groups(500, 0, 2, 3, Lengths(prompt=20, new=6, least=2, turns=3, answer=10))
    assert len(group.trajectories) == 3
    for trajectory in group.trajectories:
        begins = np.flatnonzero(np.diff(trajectory.sampled_T, prepend=0) == 1)
        assert len(begins) == 3
        assert 3 * 2 <= trajectory.sampled_T.sum() <= 3 * 6
        assert trajectory.sampled_T[-1] == 1


@pytest.mark.parametrize("way", ["loop", "grouped_mm"])
def test_steps_together_are_the_steps_alone(way: str) -> None:
    args = shared_steps.arguments(["--device", "cpu", "--prompt", "20", "--new", "6", "--groups", "1", "--size", "2", "--repeats", "1"])
    found = shared_steps.measured(args, 2, way)
    assert found["same"] < 1e-4
    assert found["cpu_s"] > 0


def test_memory_of_a_small_step_is_measured_beside_its_estimate() -> None:
    found = memory.measured(memory.arguments(["--model", "small", "--precision", "float32", "--tokens", "256", "--rank", "8"]))
    assert found["computed_tokens"] == 254
    assert found["loaded_mib"] <= found["measured_mib"] < found["loaded_mib"] + found["estimate_mib"]
