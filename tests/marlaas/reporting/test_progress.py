"""A task's progress from its events, and its display."""

from pathlib import Path

import pytest
from pydantic import JsonValue

from common.messages import Event
from common.spec import parse_spec
from marlaas.reporting import plots, tables
from marlaas.reporting.progress import Progress, sparkline
from tests.marlaas.tasks import ASKED, SPEC, step_data


def event(name: str, at_s: float, data: dict[str, JsonValue] | None = None) -> Event:
    return Event.model_validate({"tenant": "acme", "task": "t", "event": name, "at_s": at_s, "data": data or {}})


def evaluated(data: dict[str, JsonValue], at_s: float = 101.0) -> Event:
    return event("evaluation", at_s, {**ASKED, **data})


def progress(steps: int, of: int = 20) -> Progress:
    one = Progress("t", parse_spec({**SPEC, "steps": of}))
    one.apply(event("accepted", 100.0))
    for version in range(1, steps + 1):
        one.apply(event("step", 100.0 + 2 * version, step_data(version)))
    return one


def test_reward_before_and_after_are_means_of_the_edges() -> None:
    one = progress(20)
    assert one.reward_before == pytest.approx(0.3)
    assert one.reward_after == pytest.approx(1.8)
    assert one.sampled_tokens == 2000
    assert one.staleness == 0.5


def test_speed_and_time_left_come_from_the_latest_steps() -> None:
    one = progress(12)
    assert one.tokens_per_s() == pytest.approx(50.0)
    assert one.left_s() == pytest.approx(16.0)
    assert progress(1).tokens_per_s() is None


def test_step_reported_twice_counts_once() -> None:
    one = progress(3)
    one.apply(event("step", 200.0, step_data(3)))
    assert [step.version for step in one.steps] == [1, 2, 3]


def test_rejected_repetition_does_not_end_an_accepted_task() -> None:
    one = progress(3)
    one.apply(event("rejected", 200.0, {"reasons": ["the id is taken"]}))
    assert one.state == "running"
    one.apply(event("failed", 201.0, {"reason": "8 groups in a row failed"}))
    assert (one.state, one.reason) == ("failed", "8 groups in a row failed")


def test_event_with_missing_fields_is_shown_with_dashes() -> None:
    one = progress(0)
    one.apply(event("step", 101.0, {"version": 1}))
    assert one.rewards == []
    assert tables.event_line(event("step", 101.0, {"version": 1, "failed_share": 0.25})).endswith("failed 25%")
    assert "step 1 reward - staleness - tokens 0" in tables.event_line(event("step", 101.0, {"version": 1}))
    assert tables.progress_table([one]).row_count == 1
    assert tables.summary_table([one]).row_count == 1


def test_evaluations_are_told_apart_by_protocol_and_shown_with_their_intervals() -> None:
    older: dict[str, JsonValue] = {"version": 2, "reward": 0.25, "pass_at": {"1": 0.25}, "failed_share": 0.5, "failure": "sandbox died"}
    gain: JsonValue = {"reward": 0.125, "standard_error": 0.1, "interval": [-0.1, 0.3], "prompts": 9}
    newer = older | {"protocol": "greedy", "interval": [0.1, 0.5], "gain": gain}
    one = progress(3)
    for data in (older, newer):
        one.apply(evaluated(data))
    assert {protocol: list(by_version) for protocol, by_version in one.evaluations.items()} == {"main": [2], "greedy": [2]}
    lines = [tables.event_line(evaluated(data)).partition(" t ")[2] for data in (older, newer)]
    assert lines == [
        "evaluation of version 2 reward 0.250 pass@1 0.250 failed 50%: sandbox died",
        "evaluation greedy of version 2 reward 0.250 (0.100 to 0.500) pass@1 0.250 gain +0.125 (-0.100 to +0.300) failed 50%: sandbox died",
    ]


@pytest.mark.parametrize(
    ("values", "expected"), [([], ""), ([1.0], "▁"), ([0.0, 1.0], "▁█"), ([1.0, 1.0], "▁▁"), ([0.0, 0.0, 1.0, 1.0], "▁▁██")]
)
def test_sparkline_runs_from_minimum_to_maximum(values: list[float], expected: str) -> None:
    assert sparkline(values) == expected


def test_long_course_is_squeezed() -> None:
    assert sparkline([float(number) for number in range(1000)], width=8) == "▁▂▃▄▅▆▇█"


@pytest.mark.parametrize(("seconds", "text"), [(3.2, "3 s"), (245, "4 min 05 s"), (7620, "2 h 07 min"), (273_600, "3 d 04 h")])
def test_durations_read_well(seconds: float, text: str) -> None:
    assert tables.duration(seconds) == text


def test_plots_are_drawn_also_of_tasks_without_steps(tmp_path: Path) -> None:
    paths = plots.draw([progress(20), progress(0)], tmp_path)
    assert [path.name for path in paths] == ["reward.png", "staleness.png", "timeline.png"]
    with_results = progress(20)
    for version, interval in ((0, None), (10, [0.2, 0.6]), (20, [0.4, 0.9])):
        with_results.apply(evaluated({"version": version, "protocol": "greedy", "reward": 0.5, "interval": interval}))
    with_results.apply(evaluated({"version": 20, "reward": None}, 102.0))
    assert plots.draw([with_results], tmp_path)[-1].name == "evaluation.png"
    paths.append(tmp_path / "evaluation.png")
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
