"""Lists of tasks and of dead letters at the widths of terminals, with reasons of any length."""

import io

import pytest
from pydantic import JsonValue
from rich.console import Console, RenderableType

from common.messages import Event, TaskStatus
from marlaas.client import Failure
from marlaas.reporting import tables
from marlaas.reporting.listing import MIN_REASON_WIDTH

LONG = "the environment 'my_env' could not be built: " + "FileNotFoundError: /data/rows.jsonl is not there\n" * 200


def status(task: str, reason: str = "") -> TaskStatus:
    return TaskStatus(
        tenant="a-tenant-of-24-characters", task=task, name="letters", pool="tiny", state="failed" if reason else "running", reason=reason,
        version=12, steps=30, reward=0.5, staleness=1.0, sampled_tokens=123_456, failed_share=0.125, submitted_s=0.0, updated_s=60.0,
    )  # fmt: skip


def printed(renderable: RenderableType, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(renderable)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("reason", ["", "budget", LONG])
def test_every_task_has_one_line_that_fits(width: int, reason: str) -> None:
    statuses = [status("letters-872c122b"), status("a-task-with-a-long-id-1234abcd", reason)]
    header, first, second = printed(tables.status_table(statuses, width, now_s=3600.0), width)
    assert max(map(len, (header, first, second))) <= width
    assert "letters-872c122b" in first
    assert "a-task-with-a-long-id-1234abcd" in second
    assert "12/30" in second
    if reason:
        shown = second[header.index("reason") :].rstrip()
        assert reason.startswith(shown.removesuffix("…"))
        assert len(shown) >= min(len(reason), MIN_REASON_WIDTH)
    if width == 200 and reason != LONG:
        assert {"tenant", "pool", "staleness", "tokens"} <= set(header.split())


def test_time_left_counts_down_to_the_expected_end() -> None:
    running = status("letters-872c122b").model_copy(update={"expected_end_s": 3785.0})
    for now_s, left in ((3600.0, "3 min 05 s"), (3780.0, "5 s"), (4000.0, "0 s")):
        assert left in printed(tables.status_table([running], 200, now_s=now_s), 200)[1]
        assert f"time left {left}" in [" ".join(line.split()) for line in printed(tables.task_table(running, now_s=now_s), 200)]
    assert "time left -" in [" ".join(line.split()) for line in printed(tables.task_table(status("a"), now_s=0.0), 200)]


def test_reason_is_whole_where_lines_may_have_any_length() -> None:
    statuses = [status("letters-872c122b", LONG)]
    assert " ".join(LONG.split()) in printed(tables.status_table(statuses, None, now_s=3600.0), 100_000)[1]
    failures = [Failure(7, "letters-872c122b", "open", "prompts.open.x", LONG, 5)]
    assert " ".join(LONG.split()) in printed(tables.failures_table(failures, None), 100_000)[1]


@pytest.mark.parametrize("width", [80, 120])
def test_every_dead_letter_has_one_line_that_fits(width: int) -> None:
    subject = "jobs.submit.acme"
    failures = [Failure(7, "letters-872c122b", "open", "prompts.open.x", LONG, 5), Failure(1234, None, "jobs", subject, "no such verb", 1)]
    header, first, second = printed(tables.failures_table(failures, width), width)
    assert max(map(len, (header, first, second))) <= width
    assert first.rstrip().endswith("…")
    assert second.split()[0] == "1234"
    assert second.rstrip().endswith("no such verb")


def test_one_task_is_shown_with_all_of_its_reason() -> None:
    lines = printed(tables.task_table(status("letters-872c122b", LONG), now_s=3600.0), 80)
    assert max(map(len, lines)) <= 80
    assert "".join(lines).count("FileNotFoundError") == 200
    assert any(line.split() == ["sampled", "tokens", "123,456"] for line in lines)


def test_warning_that_stands_is_shown_where_the_reason_is() -> None:
    warned = status("letters-872c122b").model_copy(update={"warnings": {"truncated": "all attempts ended at their limit"}})
    assert "warning truncated: all attempts" in printed(tables.status_table([warned], 200, now_s=3600.0), 200)[1]
    assert "all attempts ended at their limit" in "\n".join(printed(tables.task_table(warned), 200))


@pytest.mark.parametrize(("over", "line"), [(False, "warning truncated: all attempts"), (True, "warning truncated is over")])
def test_warning_is_a_line_of_watch(over: bool, line: str) -> None:
    data: dict[str, JsonValue] = {"warning": "truncated", "reason": "all attempts", "over": over, "version": 3}
    event = Event(tenant="acme", task="letters-1", event="warning", at_s=0.0, data=data)
    assert tables.event_line(event).endswith(f"letters-1 {line}")
