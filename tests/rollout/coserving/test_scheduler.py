"""vLLM's scheduler with latency goals, without a model: who runs, who is held, and that nothing is lost."""

import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from common.pools import Serving
from rollout_svc.coserving import figures
from rollout_svc.coserving.step_time import StepTime
from rollout_svc.engine.config import CHECK_PRIORITY, GOALS, URGENT_PRIORITY, EngineSettings, engine_arguments
from tests.support.rollout.coserving import PROMPT, SEATS, SERVED_SEATS, engine, goals, own_prompt
from tests.support.rollout.requests import POOL

STEPS = 10_000
SLOW = [(decodes, tokens, decodes + 1e-3 * tokens) for decodes in (0, 8) for tokens in (1, 100)] * 50
"""Steps of an engine that takes a second for each decode, so that the test's own time does not matter."""


def test_random_steps_lose_no_request_and_no_block(configured: Callable[[Path], Any], tmp_path: Path) -> None:
    """Arrivals, aborts, pauses and checks; one or two steps under way, as on a CPU and on a GPU."""
    from vllm.v1.core.sched.interface import PauseState
    from vllm.v1.request import RequestStatus

    random, ahead, number = Random(0), engine(configured, tmp_path / "figures"), 0
    scheduler, adapter = ahead.scheduler, 1
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    lengths: dict[str, tuple[int, int]] = {}
    for step in range(STEPS):
        paused = scheduler.pause_state == PauseState.PAUSED_ALL
        if random.random() < 0.4 and len(scheduler.requests) < 40:
            number += 1
            adapter += random.random() < 0.05
            served = random.random() < 0.5 and sum(each.priority < 0 for each in scheduler.requests.values()) < SERVED_SEATS
            extra = goals(random.uniform(-1e-3, 2e-3), random.uniform(1e-4, 2e-3)) if served and random.random() < 0.8 else None
            prompt = [random.randrange(50) for _ in range(random.randrange(1, 100))]
            tokens = random.randrange(1, 60)
            chosen = random.choice((0, max(1, adapter - random.randrange(8))))
            name, priority = f"{number}", URGENT_PRIORITY if served else random.choice((0, 0, -5))
            lengths[name] = (len(prompt), tokens)
            ahead.add(name, prompt, tokens, priority, chosen, extra)
        if random.random() < (0.1 if paused else 0.01):
            number += 1
            lengths[f"{number}"] = (4, 1)
            ahead.add(f"{number}", [1, 2, 3, 4], 1, CHECK_PRIORITY)
        if random.random() < 0.02 and scheduler.requests:
            name = random.choice(sorted(scheduler.requests))
            scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            del lengths[name]
        checks = any(each.priority == CHECK_PRIORITY for each in scheduler.requests.values())
        if random.random() < (0.2 if paused else 0.005) and not (paused and checks):  # the engine awaits its checks, then resumes
            scheduler.set_pause_state(PauseState.UNPAUSED if paused else PauseState.PAUSED_ALL)
        before = set(scheduler.requests)
        order = [(each.request_id, each.num_preemptions) for each in scheduler.running]
        scheduled = [scheduler.requests[name] for name in ahead.schedule()]
        if scheduler.pause_state == PauseState.PAUSED_ALL:
            assert all(each.priority == CHECK_PRIORITY for each in scheduled)
            assert sum(each.priority != CHECK_PRIORITY for each in scheduler.running) <= SEATS  # checks run beside the frozen ones
        else:
            assert len(scheduler.running) <= SEATS
        inside = [*scheduler.running, *scheduler.waiting, *scheduler.kv_holding_waiting]
        assert sorted(each.request_id for each in inside) == sorted(before), step
        now = [(each.request_id, each.num_preemptions) for each in scheduler.running]
        # A rollout that is preempted and resumes in the same step, runs last.
        assert [one for one in now if one in order] == [one for one in order if one in now]
        assert len({each.lora_request.lora_int_id for each in scheduled if each.lora_request}) <= 4
        while ahead.in_flight > (step // 1000) % 2:
            ahead.deliver()
    scheduler.set_pause_state(PauseState.UNPAUSED)
    for _ in range(5_000):
        if not scheduler.has_unfinished_requests() and not ahead.in_flight:
            break
        ahead.schedule()
        ahead.deliver()
    assert not scheduler.requests
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free
    for name, (prompt, tokens) in lengths.items():
        assert ahead.delivered[name] == [*range(prompt, prompt + tokens)], name
    time.sleep(0.1)
    ahead.schedule()
    found = figures.read(tmp_path / "figures")
    assert found is not None
    assert found.faults == 0 < found.withheld_steps < found.rollout_steps
    assert found.preempted > 0


def test_rollouts_beyond_the_goals_wait_a_step_oldest_first_and_keep_their_cache(configured: Callable[[Path], Any], tmp_path: Path) -> None:
    ahead = engine(configured, tmp_path / "figures")
    rollouts = [ahead.add(f"{number}", PROMPT, 30) for number in range(6)]
    ahead.schedule()
    ahead.deliver()
    ahead.scheduler._times = StepTime(SLOW)
    ahead.add("served", [7, 8, 9], 2, URGENT_PRIORITY, extra=goals(ttft_s=5.0))  # nine tenths of it are planned for
    ahead.add("late", PROMPT, 30)
    assert ahead.schedule() == {"0": 1, "1": 1, "2": 1, "3": 1, "served": 3}
    assert [request.num_preemptions for request in rollouts] == [0] * 6
    assert [request.request_id for request in ahead.scheduler.running] == ["0", "1", "2", "3", "4", "5", "served"]
    ahead.deliver()
    ahead.scheduler.finish_requests("served", _aborted())
    assert ahead.schedule().keys() == {*"012345", "late"}
    ahead.deliver()
    for _ in range(40):
        ahead.schedule()
        ahead.deliver()
    assert all(ahead.delivered[each] == [*range(20, 50)] for each in (*"012345", "late"))


def test_rollouts_with_the_oldest_ones_adapter_run_first(configured: Callable[[Path], Any], tmp_path: Path) -> None:
    ahead = engine(configured, tmp_path / "figures")
    for number in range(6):
        ahead.add(f"{number}", PROMPT, 30, adapter=1 + number % 2)
    ahead.schedule()
    ahead.deliver()
    ahead.scheduler._times = StepTime(SLOW)
    ahead.add("served", [7, 8, 9], 2, URGENT_PRIORITY, extra=goals(ttft_s=5.0))
    assert ahead.schedule().keys() == {*"0241", "served"}


def test_prompts_of_rollouts_leave_a_request_that_may_come_half_of_its_time(configured: Callable[[Path], Any], tmp_path: Path) -> None:
    """A prompt of 20 tokens takes 20 ms, and the latest request's first token is planned to take 90 ms."""
    ahead = engine(configured, tmp_path / "figures")
    ahead.scheduler._times = StepTime((decodes, tokens, 0.001 * (decodes + tokens)) for decodes in (0, 8) for tokens in (1, 100))
    ahead.add("served", [7, 8, 9], 1, URGENT_PRIORITY, extra=goals(ttft_s=0.1))
    while "served" in ahead.scheduler.requests:
        ahead.schedule()
        ahead.deliver()
    for number in range(6):
        ahead.add(f"{number}", own_prompt(number)[:20], 30)
    assert ahead.schedule() == {"0": 20, "1": 20}
    ahead.deliver()
    assert ahead.schedule() == {"0": 1, "1": 1, "2": 20, "3": 20}
    ahead.deliver()
    ahead.scheduler._first_token_s = 1e-9
    assert ahead.schedule() == {**dict.fromkeys("0123", 1), "4": 20}, "one at least"


class Broken(StepTime):
    def expected_s(self, decodes: int, prefill_tokens: int) -> float:
        raise ArithmeticError


def test_failing_plan_leaves_the_step_to_vllm_and_ten_in_a_row_end_the_goals(
    configured: Callable[[Path], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ahead = engine(configured, tmp_path / "figures")
    for number in range(6):
        ahead.add(f"{number}", PROMPT, 100)
    ahead.schedule()
    ahead.deliver()
    ahead.add("served", PROMPT, 100, URGENT_PRIORITY, extra=goals(2.0, 1.5))

    def steps(times: StepTime, count: int) -> None:
        for _ in range(count):
            ahead.scheduler._times = times
            names = ahead.schedule().keys()
            assert (names == {*"012345", "served"}) == isinstance(times, Broken)
            ahead.scheduler._steps.clear()  # nothing to learn from
            ahead.deliver()

    with caplog.at_level("ERROR"):
        steps(Broken(), 9)
        steps(StepTime(SLOW), 1)
        steps(Broken(), 10)
    assert [line.message for line in caplog.records] == [
        "planning engine steps has failed 1 times",
        "planning engine steps has failed 19 times; goals are off after 10 failures in a row",
    ]
    assert all(line.exc_info for line in caplog.records)
    ahead.scheduler._times = StepTime(SLOW)
    time.sleep(0.1)
    assert ahead.schedule().keys() == {*"012345", "served"}
    found = figures.read(tmp_path / "figures")
    assert found is not None
    assert (found.faults, found.goals_off) == (19.0, 1.0)
    assert not ahead.scheduler._has_goals([]), "nothing is cut for them either"


def test_profile_of_the_start_is_kept_while_training_runs_alone(configured: Callable[[Path], Any], tmp_path: Path) -> None:
    scheduler = engine(configured, tmp_path / "figures").scheduler
    for _ in range(50):
        scheduler._learn(0, 100, 1.0)
        scheduler._learn(8, 0, 0.1)
    for _ in range(5_000):
        scheduler._learn(8, 0, 0.1)
    assert scheduler._times.expected_s(8, 100) > 0.5


def test_vllm_without_a_name_is_refused_in_a_line() -> None:
    from rollout_svc.coserving.scheduler import USED, require_names

    names = SimpleNamespace(**dict.fromkeys(USED))
    require_names(names)
    del names.kv_holding_waiting
    with pytest.raises(RuntimeError, match="latency goals need a vLLM whose scheduler has kv_holding_waiting; install a tested one"):
        require_names(names)


def test_without_goals_vllm_gets_what_it_got_before() -> None:
    arguments = engine_arguments(EngineSettings.of(POOL.model_copy(update={"serving": Serving()}), device="cpu"), cpu=True)
    assert GOALS not in arguments.additional_config
    assert arguments.scheduler_cls == "rollout_svc.coserving.preemption.ServingScheduler"
    assert engine_arguments(EngineSettings.of(POOL, device="cpu"), cpu=True).scheduler_cls is None


def _aborted() -> Any:
    from vllm.v1.request import RequestStatus

    return RequestStatus.FINISHED_ABORTED
