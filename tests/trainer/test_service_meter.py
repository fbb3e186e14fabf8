"""What a slice of an accelerator is booked by: seconds of the learner's thread, by task."""

import pytest

from common.accelerators.executors import Function, WorkDone
from trainer_svc.device.meter import Planned, ServiceMeter


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_shared_time_goes_by_tokens_and_none_of_it_is_lost_or_counted_twice() -> None:
    clock = Clock()
    meter = ServiceMeter(clock)
    with meter.computing({"a": 300, "b": 100}, pieces=2):
        clock.now_s += 1.0
        assert (meter.running, meter.operations) == (Function.TRAIN, 2)
        assert meter.taken() == WorkDone({"a": 750, "b": 250}, 1.0, 0)
        clock.now_s += 0.5
    clock.now_s += 60.0
    with meter.computing({"a": 1}):
        clock.now_s += 0.25
    assert meter.taken() == WorkDone({"a": 625, "b": 125}, 0.75, 2)
    assert meter.taken() == WorkDone()
    assert meter.running is None


def test_passes_without_a_gradient_are_told_from_training_also_when_asked_in_the_middle() -> None:
    clock = Clock()
    meter = ServiceMeter(clock)
    with meter.computing({"a": 1}, pieces=1):
        clock.now_s += 1.0
        with meter.scoring():
            clock.now_s += 0.25
            assert meter.running is Function.SCORE
            assert meter.taken() == WorkDone({"a": 1250}, 1.25, 0, score_s=0.25)
            clock.now_s += 0.5
        assert meter.running is Function.TRAIN
        clock.now_s += 2.0
    assert meter.taken() == WorkDone({"a": 2500}, 2.5, 1, score_s=0.5)
    assert meter.running is None


def test_fractions_of_a_millisecond_are_kept() -> None:
    clock = Clock()
    meter, booked = ServiceMeter(clock), 0
    for _ in range(2048):
        with meter.computing({"a": 1}):
            clock.now_s += 2**-11
        booked += meter.taken().by_task.get("a", 0)
    assert booked in (999, 1000)


def test_rest_of_an_operation_is_expected_from_those_before() -> None:
    clock = Clock()
    meter = ServiceMeter(clock)
    assert meter.left_s is None
    with meter.computing({"a": 1}, pieces=1):
        assert meter.left_s is None
        clock.now_s += 4.0
    with meter.computing({"a": 1}, pieces=1):
        clock.now_s += 1.0
        assert meter.left_s == 3.0
        clock.now_s += 10.0
        assert meter.left_s == pytest.approx(1.1), "a step that takes longer than expected is not over"
    assert meter.left_s is None


def test_long_step_is_not_expected_to_end_as_soon_as_the_short_ones_before() -> None:
    """A park that waits for it would count it as hung after ten times what is expected."""
    clock = Clock()
    meter = ServiceMeter(clock)
    for _ in range(5):
        with meter.computing({"short": 100}, pieces=1):
            clock.now_s += 0.5
    with meter.computing({"long": 9000, "beside": 1000}, pieces=2):
        assert meter.left_s == pytest.approx(50.0)


def test_tokens_that_are_only_scored_are_expected_to_take_what_such_tokens_took() -> None:
    """Tasks of one pool differ in how often they score: by one duration a token, each would be expected to take the others' mean."""
    clock = Clock()
    meter = ServiceMeter(clock)
    with meter.computing({"plain": 100}, Planned(100), pieces=1):
        clock.now_s += 3.0
    with meter.computing({"kl": 100}, Planned(100, score=100), pieces=1):
        assert meter.left_s == pytest.approx(6.0), "as training, before any was measured"
        with meter.scoring():
            clock.now_s += 1.0
        clock.now_s += 3.0
    with meter.computing({"plain": 200}, Planned(200), pieces=1):
        assert meter.left_s == pytest.approx(6.0)
        clock.now_s += 6.0
    with meter.computing({"kl": 100, "other": 100}, Planned(200, score=100) + Planned(200, score=200), pieces=2):
        assert meter.left_s == pytest.approx(15.0), "as often as it passes"
