"""The simulator of `python -m bench.coserving simulator`: cases computed by hand, and that it says nothing of what was not compared."""

from dataclasses import replace
from typing import Any

import pytest

from bench.coserving import simulator, trace
from bench.coserving.simulated import SEATS, Cost, Engine, Message, Replica, Rollout, Served, Task, Wrong, send
from bench.coserving.simulator import Case, Point
from bench.coserving.sums import DECIDES, PROMPT, ROLLOUT_PROMPT, TOKENS, Options
from bench.harness.services import BenchError
from bench.plex.events import Events
from common.pools import Goals

COST = Cost.of(ttft_s=0.0145, tpot_s=0.0046, tokens_per_s=5371)
GOALS = Goals(ttft_s=0.0725, tpot_s=0.0092)
RATE = 20.0
SMALL = Options(1, 1.0, small=True, day_s=1.0)
POINTS = [Point(arm, RATE * share, 1.0) for share in (0.3, 0.7) for arm in ("slices", "cap-16", "ours")]


def engine(arm: str = "ours") -> Engine:
    return Engine(Events(), COST, DECIDES[arm], GOALS, seed=1, jitter=0.0)


def test_costs_of_steps_are_those_of_which_measurements_consist() -> None:
    assert COST.step_s(1, 0) == pytest.approx(0.0046)
    assert COST.step_s(0, PROMPT) == pytest.approx(0.0145)
    assert SEATS / COST.step_s(SEATS, ROLLOUT_PROMPT * SEATS // 120) == pytest.approx(5371, rel=0.02)


def test_costs_between_measured_ones_are_linear_and_go_on_beyond_the_last() -> None:
    bent = Cost.of(ttft_s=0.0145, tpot_s=0.0046, tokens_per_s=5371, beside={16: 0.008, 32: 0.009})
    assert [bent.step_s(1 + beside, 0) for beside in (0, 8, 16, 24, 32)] == pytest.approx([0.0046, 0.0063, 0.008, 0.0085, 0.009])
    assert bent.step_s(SEATS, 7) == pytest.approx(COST.step_s(SEATS, 7))
    assert bent.step_s(SEATS + 31, 0) - bent.step_s(SEATS, 0) == pytest.approx(bent.step_s(SEATS, 0) - bent.step_s(33, 0))


def test_request_alone_takes_a_step_for_its_prompt_and_one_for_each_further_token() -> None:
    one = engine()
    one.serve(asked := Served(due_s=0.0))
    one.clock.run()
    assert asked.is_complete
    assert (asked.first_s, asked.tokens) == (pytest.approx(0.0145), TOKENS)
    assert asked.last_s == pytest.approx(0.0145 + (TOKENS - 1) * 0.0046)


@pytest.mark.parametrize(("arm", "beside"), [("slices", 0), ("cap-8", 8)])
def test_arm_decides_how_many_rollouts_run_beside_a_request(arm: str, beside: int) -> None:
    """The request comes in the first step of 16 rollouts, and takes 24 steps. `beside` rollouts sample in these, and all in the others."""
    one, ended, count = engine(arm), list[float](), 16
    one.waiting.extend(Rollout(str(number), 40, lambda: ended.append(one.clock.now_s)) for number in range(count))
    one.wake()
    first_s = COST.step_s(0, ROLLOUT_PROMPT * count)
    one.clock.at(first_s / 2, lambda: one.serve(Served(due_s=first_s / 2)))
    one.clock.run()
    served_s = COST.step_s(beside, PROMPT) + (TOKENS - 1) * COST.step_s(1 + beside, 0)
    alone_s = (39 - (TOKENS if beside else 0)) * COST.step_s(count, 0)
    caught_up_s = TOKENS * COST.step_s(count - beside, 0) if beside else 0.0
    assert (len(ended), one.tokens) == (count, 40 * count)
    assert ended[-1] == pytest.approx(first_s + served_s + alone_s + caught_up_s)


def test_prompts_of_a_step_enter_as_far_as_a_request_can_wait() -> None:
    """21 prompts of 24 tokens take 36 ms, more than half of nine tenths of the goal: 72.5 ms."""
    one = engine()
    one.waiting.extend(Rollout(str(number), 40, lambda: None) for number in range(21))
    one.wake()
    one.clock.run(0.0)
    assert len(one.rollouts) == 18


def test_estimates_stay_wrong_whatever_is_learned() -> None:
    wrong = Wrong([(1, 0, 0.004), (SEATS, 0, 0.012)])
    right_s, wrong.factor = wrong.expected_s(SEATS, 0), 0.5
    for _ in range(100):
        wrong.learn(SEATS, 0, right_s)
    assert wrong.expected_s(SEATS, 0) == pytest.approx(right_s / 2, rel=0.01)
    assert wrong.margin == pytest.approx(2.0), "its own errors raise the margin instead"


def test_day_has_the_shape_of_the_trace() -> None:
    rate, count = trace.day(600.0), 6000
    rates = [rate(600.0 * (number + 0.5) / count) for number in range(count)]
    minutes = [sum(rates[start : start + count // 10]) / (count // 10) for start in range(0, count, count // 10)]
    assert sum(rates) / count == pytest.approx(1.0, abs=0.01)
    assert (max(minutes), max(rates)) == (pytest.approx(1.7, abs=0.02), 4.2)
    assert len(trace.arrivals(10.0, 600.0, 1, rate)) == pytest.approx(6000, rel=0.05)


def test_equal_cases_are_equal_and_lent_engines_sample() -> None:
    runs = {name: simulator.many_engines(Case(name), COST, GOALS, RATE, 4.0) for name in ("fixed", "ours")}
    again = simulator.many_engines(Case("ours"), COST, GOALS, RATE, 4.0)
    assert [(one.first_s, one.last_s) for one in again[0].asked] == [(one.first_s, one.last_s) for one in runs["ours"][0].asked]
    assert again[0].rollout_tokens == runs["ours"][0].rollout_tokens > 1.3 * runs["fixed"][0].rollout_tokens
    assert len(runs["fixed"][0].asked) == len(runs["ours"][0].asked) > 50


def test_stalled_turns_are_handed_back_and_sampled_elsewhere() -> None:
    """Of two engines the first serves more than it can: its room shrinks to its least, and its task's step ends all the same."""
    clock = Events()
    replicas = [Replica(name, Engine(clock, COST, DECIDES["ours"], GOALS, 1, jitter=0.0), lambda: reports) for name in "ab"]
    reports = [one.report for one in replicas]
    task = Task("t", replicas[0], tail=5.0, seed=1)
    task.begin()

    def each() -> None:
        reports[:] = [one.report for one in replicas]
        for one in replicas:
            one.look()
            one.help(replicas)
        if clock.now_s < 60.0:
            clock.at(clock.now_s + 1.0, each)

    send(clock, [replicas[0].engine], trace.arrivals(60.0, 40.0, 1))
    clock.at(0.0, each)
    clock.run(60.0)
    assert min(replicas[0].sizes) < SEATS / 2 < replicas[0].sizes[-1]
    assert replicas[0].handed_back > 0 < replicas[1].helped
    assert task.steps_s
    for one in replicas:
        assert one.slots.used == len(one.engine.rollouts) + len(one.engine.waiting)


def test_message_is_taken_from_a_queue_where_it_waited_as_long_as_the_product_says() -> None:
    """With half of the sequences in use 1.5 s; with more than three quarters never."""
    clock = Events()
    home, idle = (Replica(name, Engine(clock, COST, DECIDES["ours"], GOALS, 1), None) for name in "ab")
    message = Message([Rollout("r", 40, lambda: None)], home.queue, came_s=0.0)
    home.queue.append(message)
    for used, at_s, helped in ((SEATS // 2, 1.4, 0), (SEATS * 7 // 8, 9.0, 0), (SEATS // 2, 1.6, 1)):
        clock.now_s = at_s
        idle.slots.take(used - idle.slots.used)
        idle.help([home, idle])
        assert idle.helped == helped
    assert message.at is idle


def test_rollouts_handed_back_begin_anew() -> None:
    one = engine()
    rollouts = [Rollout(name, 40, lambda: None) for name in "abc"]
    one.waiting.extend(rollouts)
    one.wake()
    one.clock.run(0.1)
    assert {(each.tokens > 5, each.tokens + each.left) for each in rollouts} == {(True, 40)}
    one.drop(rollouts[:2])
    assert [(each.tokens, each.left) for each in rollouts[:2]] == [(0, 40)] * 2
    assert one.rollouts == rollouts[2:]


def arms(**changes: Any) -> dict[str, Any]:
    """What `arms` would have written."""
    rows: list[dict[str, Any]] = [{"load": "30 %", "arm": "training", "tokens_per_s": 5371}]
    rows += [
        {"load": load, "arm": arm, "tokens_per_s": 3000, "tpot_p50": tpot_ms}
        for load, tpot_ms in (("30 %", 8.5), ("70 %", 9.5))
        for arm in ("slices", "cap-16", "ours", "order")
    ]
    return {"digest": simulator.digest(), "rows": rows, "goals_ms": {"ttft": 72.5, "tpot": 9.2}, "attained_per_s": RATE, **changes}


def test_points_are_those_of_the_arms() -> None:
    cost, goals, rate, points = simulator.measured(arms())
    assert (goals, rate) == (GOALS, RATE)
    expected = Cost.of(0.0145, 0.0046, 5371, {16: 0.0085})
    assert cost.decodes == expected.decodes
    assert cost.seconds == pytest.approx(expected.seconds), "the caps' steps are those of the light load"
    assert [(one.arm, one.rate) for one in points] == [(one.arm, one.rate) for one in POINTS]


@pytest.mark.parametrize("found", [{}, arms(digest="of other modules")])
def test_nothing_is_said_of_other_modules_than_were_measured(found: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BenchError, match="other modules"):
        simulator.simulated(found, SMALL)
    assert capsys.readouterr() == ("", "")


def test_nothing_is_said_if_a_prediction_is_far_or_missing() -> None:
    said = {one.arm: simulator.one_engine(one, COST, GOALS, 2.0, number).rollout_tokens / 2.0 for number, one in enumerate(POINTS[:3])}
    near = [replace(one, tokens_per_s=1.15 * said[one.arm]) for one in POINTS[:3]]
    assert [one["error"] for one in simulator.predictions(near, COST, GOALS, 2.0, 3)] == [pytest.approx(-0.13, abs=0.001)] * 3
    with pytest.raises(BenchError, match=r"ours at 6.0/s -23%"):
        simulator.predictions([*near[:2], replace(near[2], tokens_per_s=1.3 * said["ours"])], COST, GOALS, 2.0, 3)
    with pytest.raises(BenchError, match="2 measured points of 3"):
        simulator.predictions(near[:2], COST, GOALS, 2.0, 3)


def test_digest_is_of_the_functions_that_decide() -> None:
    assert simulator.digest() != simulator.digest(simulator.MODULES[1:])
