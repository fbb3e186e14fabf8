"""`bench.agentic`'s results, on cases worked out by hand, and its tap on messages."""

from typing import Any

import pytest

from bench import agentic
from bench.charts import policy_tables
from bench.harness.load.standins import SampledSpan, Trace, TrainedSpan
from bench.harness.measures import cores, stages
from bench.harness.measures.tap import Heard, overheard, sampled_spans
from bench.harness.services import BenchError
from bench.trl import spec
from common import streams
from common.bus import Bus, Outgoing
from common.messages import Event, SampledTurn, SampleTurns, ScoredTrajectory, TokenRecord, TrajectoriesScored, TurnRequest, TurnsSampled
from marlaas.reporting.progress import TrainedStep, step_of
from tests.support.groups import group_context
from tests.support.waiting import eventually

GROUP = group_context("a", 3, size=2)


def test_its_options_make_tasks() -> None:
    made = [spec(agentic.WORKLOAD, agentic.arguments(["--tasks", "2", "--steps", "5"]), number) for number in range(2)]
    assert [task.steps for task in made] == [5, 5] and made[0].seed != made[1].seed
    assert {task.algorithm.max_staleness for task in made} == {0}


def asked(member: int, turn: int) -> SampleTurns:
    return SampleTurns(group=GROUP, members=[TurnRequest(member=member, turn=turn, transcript=TokenRecord(), messages=[], state=b"")])


def answered(member: int, turn: int) -> TurnsSampled:
    one = SampledTurn(member=member, turn=turn, transcript=TokenRecord(), reply="", finish="stop", state=b"")
    return TurnsSampled(group=GROUP, members=[one])


def scored(member: int, turns: int) -> TrajectoriesScored:
    return TrajectoriesScored(
        group=GROUP, members=[ScoredTrajectory(member=member, transcript=TokenRecord(), reward=0.5, turns=turns, env_ms=0, away_ms=0)]
    )


def heard(at_s: float, message: SampleTurns | TurnsSampled | TrajectoriesScored) -> Heard:
    match message:
        case SampleTurns():
            subject = streams.sample("p", "a", "3-0")
        case TurnsSampled():
            subject = streams.turn("e", "a", "3-0")
        case TrajectoriesScored():
            subject = streams.scored("a", "3-0")
    return Heard(at_s, subject, message.encode())


def test_a_turn_is_sampled_until_its_answer_and_then_with_its_environment() -> None:
    passed = [heard(1.0, asked(0, 0)), heard(1.5, answered(0, 0)), heard(3.5, asked(0, 1)), heard(4.0, answered(0, 1))]
    assert sampled_spans([*passed, heard(4.25, scored(0, 2))]) == [
        SampledSpan("a", 3, 0, 0, 1.0, 1.0, 1.5, environment_s=2.0),
        SampledSpan("a", 3, 0, 1, 3.5, 3.5, 4.0, environment_s=0.25),
    ]


def test_a_redelivered_message_changes_nothing_and_a_turn_without_an_end_is_left_out() -> None:
    passed = [heard(1.0, asked(0, 0)), heard(1.5, answered(0, 0)), heard(3.5, scored(0, 1))]
    redelivered = [heard(5.0, asked(0, 0)), heard(6.0, answered(0, 0)), heard(7.0, scored(0, 1))]
    unfinished = [heard(1.0, asked(1, 0)), heard(2.0, answered(1, 0))]
    assert sampled_spans([*passed, *redelivered, *unfinished]) == [SampledSpan("a", 3, 0, 0, 1.0, 1.0, 1.5, environment_s=2.0)]


async def test_what_passes_is_overheard_and_stays_in_its_queue(bus: Bus, nats_url: str) -> None:
    async with overheard(nats_url, None) as passed:
        await bus.publish(Outgoing(streams.sample("p", "a", "3-0"), asked(0, 0), "one"))
        await bus.publish(Outgoing(streams.scored("a", "3-0"), scored(0, 1), "two"))
        await eventually(lambda: len({one.subject for one in passed}) == 2)  # a slow confirmation makes a publisher send twice
    assert {one.subject for one in passed} == {"prompts.sample.p.a.3-0", "trajectories.scored.a.3-0"}
    assert await bus.streams.backlog(streams.PROMPTS) == 1


def step(**times: float) -> TrainedStep:
    metrics = {"read_s": 0.1, "restore_s": 0.2, "wait_s": 0.3, "publish_s": 0.5}
    data: dict[str, Any] = {"version": 2, "times": {"batched_s": 9.0, "started_s": 10.0, "trained_s": 12.0} | times, "metrics": metrics}
    return step_of(Event(tenant="t", task="a", event="step", at_s=13.0, data=data))


def test_the_trainer_has_a_step_from_its_turn_until_it_is_stored() -> None:
    found = stages.trained_span("a", step())
    assert (found.version, found.asked_at, found.started_at, found.ended_at) == pytest.approx((1, 9.0, 10.6, 11.5))


def test_a_step_that_does_not_say_when_it_was_trained_is_no_measurement() -> None:
    undated = Event(tenant="t", task="a", event="step", at_s=13.0, data={"version": 2})
    with pytest.raises(BenchError, match="version 2"):
        stages.trained_span("a", step_of(undated))


def test_what_a_process_takes_while_it_has_nothing_to_do_is_not_work() -> None:
    assert cores.busy_share(0.6, 0.2) == 0.5
    assert cores.busy_share(0.1, 0.2) == 0.0


def test_stage_times_are_those_of_the_slowest_attempt_of_each_step() -> None:
    quick = [SampledSpan("a", 0, 0, 0, 0.0, 0.0, 1.0, environment_s=1.0)]
    slow = [SampledSpan("a", 1, 1, 0, 0.0, 0.0, 0.5, environment_s=2.0), SampledSpan("a", 1, 1, 1, 2.5, 2.5, 3.25, environment_s=1.0)]
    trace = Trace([*quick, *slow], [TrainedSpan("a", 0, 5.0, 5.0, 5.25)])
    assert stages.stage_times(trace, groups_per_step=2) == {"sampling": 1.25, "environment": 3.0, "training": 0.25}


def run(policy: str, tasks: int, end_to_end_s: float) -> dict[str, Any]:
    return {
        "policy": policy,
        "tasks": tasks,
        "end_to_end_s": end_to_end_s,
        "first_step_s": {"p50": 2.0},
        "step_s": {"p50": 5.0, "p99": 6.0},
        "staleness_max": 0.0,
        "trajectories_per_s": 3.0,
        "tokens_per_s": 400,
        "sampler": {"core": 0.25},
        "trainer": {"core": 0.5},
        "stages_s": {"sampling": 1.0, "environment": 2.5, "training": 0.5},
        "cpu_s_per_step": 2.0,
        "cores_busy": 0.75,
        "elsewhere": 0.02,
        "rewards": {"task-0": [0.1, 0.3]},
    }


def test_one_task_shows_what_there_is_to_gain() -> None:
    assert stages.to_gain([run("sequential", 1, 10.0), run("sequential", 2, 20.0)]) == {
        "sampling": 1.0,
        "environment": 2.5,
        "training": 0.5,
        "between": 1.0,
        "step": 5.0,
        "closed_form": 8.0,
    }
    assert stages.to_gain([run("sequential", 2, 20.0)]) is None


def test_the_table_shows_medians_gains_and_failures() -> None:
    runs = [run("asynchronous", 2, seconds) for seconds in (10.0, 12.0, 11.0)] + [run("sequential", 2, 33.0), run("synchronous", 2, 22.0)]
    runs[3]["sampler"] = {"core": 0.1}
    runs[0]["rewards"] = {"task-0": [0.1, 0.35]}
    machine = {"cores": 2, "processor": "x", "load_before": 0.1}
    options = {"steps": 3, "groups": 2, "size": 8}
    result = {
        "machine": machine,
        "options": options,
        "cores": {"sampler": [0], "trainer": [1]},
        "engine_alone": {"tokens_per_s": 4000, "tokens_per_turn": 3, "adapters": 2},
    }
    made = policy_tables.agentic(
        result | {"runs": runs, "stages": stages.to_gain([run("sequential", 1, 10.0)]), "failed": ["synchronous: why"]}
    )
    assert "Sampler on core 0, trainer on core 1." in made
    assert "| 2 | asynchronous | 3 | 11.0 (10.0 – 12.0) | 25% | 50% | 3.0 | 400 (10%) | 2.00 | 5.00 / 6.00 |" in made
    assert "2 tasks asynchronous are done 3.0× sooner than sequential (cores of sampler and trainer 2.5× and 1.0× as busy) and 2.0×" in made
    assert "(R + E + T) / T = 8.0" in made
    assert "2.00 s of processor time a step and keeps the cores 75% busy: 2 cores leave 5.0×, 2 tasks 2×." in made
    assert "0.100 → 0.350; that of a step of a task differs by 0.0500 at most" in made
    assert "Failed: synchronous: why." in made
