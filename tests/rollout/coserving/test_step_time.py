"""The step time model against engines of known speed."""

from collections.abc import Callable
from random import Random

import pytest

from rollout_svc.coserving.step_time import MAX_MARGIN, StepTime

Speed = Callable[[int, int], float]


def speed(decodes: int, tokens: int) -> float:
    """Seconds of a step on the tiny model."""
    return 2.5e-3 + 8e-5 * decodes + 7e-5 * tokens


def drive(times: StepTime, took: Speed, steps: int, noise: float = 0.05) -> None:
    random = Random(1)
    for _ in range(steps):
        decodes, tokens = random.randrange(64), random.choice((0, 0, 0, random.randrange(200)))
        times.learn(decodes, tokens, took(decodes, tokens) * random.gauss(1.0, noise))


def test_profile_gives_the_first_weights_and_no_errors() -> None:
    times = StepTime([(decodes, tokens, speed(decodes, tokens)) for decodes in (1, 32, 64) for tokens in (0, 160)] * 10)
    assert times.expected_s(20, 80) == pytest.approx(speed(20, 80), rel=0.02)
    assert (times.margin, times.median_error, times.p95_error) == (1.0, 0.0, 0.0)


def test_model_learns_and_knows_its_errors() -> None:
    times = StepTime()
    drive(times, speed, 2_000)
    for decodes, tokens in ((0, 160), (1, 0), (64, 0), (30, 100)):
        assert times.expected_s(decodes, tokens) == pytest.approx(speed(decodes, tokens), rel=0.05)
    assert 0.01 < times.median_error < 0.06 < times.p95_error < 0.15
    assert 1.05 < times.margin < 1.2


def test_wrong_model_is_right_again_after_some_hundred_steps() -> None:
    """20 s are some 2,000 steps of 10 ms."""
    times = StepTime([(decodes, tokens, 0.5 * speed(decodes, tokens)) for decodes in (1, 32, 64) for tokens in (0, 160)] * 100)
    drive(times, speed, 100)
    assert times.margin > 1.3
    drive(times, speed, 1_900)
    assert times.median_error < 0.1
    assert times.p95_error < 0.3
    assert times.expected_s(30, 100) == pytest.approx(speed(30, 100), rel=0.05)


def test_steps_without_prompts_keep_what_prompts_cost() -> None:
    times = StepTime()
    drive(times, speed, 2_000)
    for _ in range(20_000):
        times.learn(20, 0, speed(20, 0))
    assert times.expected_s(20, 0) == pytest.approx(speed(20, 0), rel=0.02)
    assert times.expected_s(20, 160) == pytest.approx(speed(20, 160), rel=0.1)


def test_seconds_of_full_steps_keep_what_small_ones_cost() -> None:
    for seed in range(5):
        times, random = StepTime(), Random(seed)
        drive(times, speed, 2_000)
        for _ in range(3_000):
            decodes, tokens = 64 - random.randrange(8), random.choice((0, 0, 0, 24, 48))
            times.learn(decodes, tokens, speed(decodes, tokens) * random.gauss(1.0, 0.12))
        for small in (1, 8):
            assert times.expected_s(small, 0) == pytest.approx(speed(small, 0), rel=0.2)


def test_stopped_process_changes_little() -> None:
    times = StepTime()
    drive(times, speed, 2_000)
    times.learn(30, 0, 60.0)
    for _ in range(3):
        times.learn(30, 0, speed(30, 0))
    assert times.expected_s(30, 0) == pytest.approx(speed(30, 0), rel=0.1)
    assert times.margin < MAX_MARGIN


def test_estimates_grow_with_the_step() -> None:
    """Also where the measurements fall: a plan needs that more rollouts never seem faster."""
    times = StepTime()
    drive(times, lambda decodes, tokens: 0.01 - 1e-4 * decodes - 1e-5 * tokens, 2_000)
    assert times.expected_s(0, 0) <= times.expected_s(1, 0) <= times.expected_s(64, 0)
    assert times.expected_s(64, 0) <= times.expected_s(64, 200)
