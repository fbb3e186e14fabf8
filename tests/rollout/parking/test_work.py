"""What an engine did for whom, by a clock that stands while it is parked, and the gate at which requests wait."""

import asyncio
import json

import pytest

from rollout_svc.engine.work import Gate, WorkMeter, invariance_requests, require_embedded
from tests.support.paths import ROOT


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def work(clock: Clock) -> WorkMeter:
    return WorkMeter(clock)


def test_time_counts_while_anything_is_inside_and_the_engine_is_awake(work: WorkMeter, clock: Clock) -> None:
    clock.now_s += 5  # idle
    first = work.begin("1", "a")
    clock.now_s += 2
    second = work.begin("2", "b")
    clock.now_s += 3
    work.end(first)
    work.stop()
    clock.now_s += 100  # parked
    assert work.taken({}).busy_s == pytest.approx(5)
    work.go()
    clock.now_s += 1
    work.end(second)
    clock.now_s += 7
    assert work.taken({}).busy_s == pytest.approx(1)
    assert work.clock_s == pytest.approx(18)
    assert work.idle.is_set()


def test_each_token_is_counted_once_for_its_task(work: WorkMeter) -> None:
    whole, stream, canary = work.begin("whole", "a"), work.begin("stream", "b"), work.begin("canary", "")
    stream.sampled(2)
    assert work.taken({"whole": 5, "stream": 3}).by_task == {"a": 5, "b": 3}
    stream.sampled(2)
    whole.sampled(9)
    canary.sampled(1)
    for entry in (whole, stream, canary):
        work.end(entry)
    rest = work.taken({})
    assert (rest.by_task, rest.pieces) == ({"a": 4, "b": 1}, 2)
    assert work.taken({}).by_task == {}


def test_time_left_is_what_most_requests_took_less_the_age_of_the_youngest(work: WorkMeter, clock: Clock) -> None:
    assert work.left_s() is None
    for number in range(11):
        entry = work.begin(str(number), "a")
        clock.now_s += number
        work.end(entry)
    assert work.left_s() is None
    work.begin("old", "a")
    clock.now_s += 4
    work.begin("young", "a")
    clock.now_s += 2
    assert work.left_s() == pytest.approx(7)
    work.stop()
    clock.now_s += 50
    assert work.left_s() == pytest.approx(7)
    work.go()
    clock.now_s += 50
    assert work.left_s() == 0


async def test_gate_lets_requests_in_when_it_opens_but_none_that_was_dropped() -> None:
    gate = Gate(is_open=True)
    assert await gate.enter("early")
    gate.close()
    entering = [asyncio.create_task(gate.enter(name)) for name in ("kept", "dropped")]
    await asyncio.sleep(0)
    assert gate.waiting == 2
    gate.drop(["dropped", "never there"])
    assert gate.waiting == 1
    gate.open()
    assert await asyncio.gather(*entering) == [True, False]
    assert gate.waiting == 0
    assert await gate.enter("dropped")
    gate.close()
    late = asyncio.create_task(gate.enter("dropped"))
    await asyncio.sleep(0)
    gate.open()
    assert await late


def test_warm_up_prompts_have_an_embedding_in_every_model_of_the_tree() -> None:
    """models/compose has 32 tokens: with more in these prompts its sampler does not start."""
    rows = [json.loads(path.read_text())["vocab_size"] for path in ROOT.glob("models/*/config.json")]
    for request in invariance_requests(512, 0, []):
        require_embedded(request.ids, min(rows))
