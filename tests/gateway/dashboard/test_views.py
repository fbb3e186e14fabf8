"""View models."""

import csv
import io
from base64 import b64decode
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from common.formats.step_times import MISSING, pack_steps, unpack_steps
from common.messages import InvoiceLine, TaskTimes, TaskUsage, TenantUsage, WhyAnswer
from gateway_svc.web import text
from gateway_svc.web.views.charts import HEIGHT, WIDTH, chart, sparkline, thinned
from gateway_svc.web.views.listing import Listing, listing, wanted_tasks
from gateway_svc.web.views.task import Run, compared, differences, flat, places, task_charts
from gateway_svc.web.views.timeline import as_data, line_of, load_of
from gateway_svc.web.views.usage import Ledger, as_csv, usage_page
from tests.gateway.dashboard.made import evaluation, status, step


def test_sparkline_fills_its_box() -> None:
    found = sparkline([1.0, 3.0, float("nan"), 2.0], "Reward")

    assert found is not None
    points = [tuple(map(float, point.split(","))) for point in found.points.split()]
    assert points == [(2.0, HEIGHT - 2), (WIDTH / 2, 2.0), (WIDTH - 2, HEIGHT / 2)]
    assert "from 1.000 to 2.000" in found.label


@pytest.mark.parametrize("values", [[], [1.0], [float("nan"), float("inf")]])
def test_sparkline_of_fewer_than_two_values_is_none(values: list[float]) -> None:
    assert sparkline(values, "Reward") is None
    assert sparkline([1.0, 1.0], "Reward") is not None


def test_chart_has_a_row_for_every_place_and_gaps_where_a_series_has_none() -> None:
    found = chart("Loss – KL", "nats", "step", {"a": [(2, 0.5), (1, 0.25)], "b": [(2, float("nan")), (3, 1.0)], "c": [(1, None)]})

    assert found is not None
    assert (found.name, found.series) == ("loss-kl", ("a", "b"))
    assert [(row.x, row.values) for row in found.rows] == [(1, (0.25, None)), (2, (0.5, None)), (3, (None, 1.0))]
    assert "a: 0.25 at first, 0.5 at last" in found.summary
    assert chart("x", "", "step", {"a": [(1, None), (2, float("inf"))]}) is None


def test_long_chart_keeps_its_ends_and_says_how_much_it_leaves_out() -> None:
    found = chart("x", "", "step", {"a": [(x, float(x)) for x in range(10_000)]}, most=500)

    assert found is not None
    assert (len(found.rows), found.left_out) == (500, 9_500)
    assert (found.rows[0].x, found.rows[-1].x) == (0, 9_999)
    assert thinned(range(5), 5) == [0, 1, 2, 3, 4]


def test_steps_are_placed_by_version_time_and_tokens() -> None:
    steps = [step(1), step(2), step(4)]

    assert places(steps, "step") == [1, 2, 4]
    assert places(steps, "time") == [10.5, 20.5, 40.5]
    assert places(steps, "tokens") == [100, 200, 300]
    assert places([], "time") == []


def test_charts_of_a_task_are_of_trained_steps_and_skip_what_has_no_data() -> None:
    steps = [step(1), step(2, state="batched", reward=9.0), step(3, metrics={})]
    charts = {one.title: one for one in task_charts(steps, [evaluation(0), evaluation(3, interval=None), evaluation(99)], "step")}

    assert set(charts) == {"Reward", "Evaluations", "Entropy", "Staleness"}
    assert [(row.x, row.values) for row in charts["Reward"].rows] == [(1, (0.1,)), (3, (0.3,))]
    assert charts["Evaluations"].series == ("main", "main, lower bound", "main, upper bound")
    assert [(row.x, row.values) for row in charts["Evaluations"].rows] == [(0, (0.5, 0.4, 0.6)), (3, (0.5, None, None))]


def test_listing_says_why_live_tasks_wait_and_why_others_ended() -> None:
    why = {name: WhyAnswer(task=name, cause="share", number=1, sentence="others are served") for name in ("live", "ended")}
    why["free"] = WhyAnswer(task="free", cause=None, number=None, sentence="nothing holds it")
    statuses = [status("live"), status("free"), status("ended", state="failed", reason="no sandbox"), status("new", steps=0)]
    found = listing(wanted_tasks([], "", "", "", ""), statuses, None, {"live": [step(1), step(2)]}, why)

    assert [row.why for row in found.rows] == ["others are served", "", "no sandbox", ""]
    assert [row.spark is not None for row in found.rows] == [True, False, False, False]


def test_addresses_of_a_listing_keep_its_filters_and_begin_at_the_first_page() -> None:
    found = Listing([], wanted_tasks(["running", "paused"], "tiny", "a&b", "-reward", "x~live-1"), None)

    assert found.address() == "state=running&state=paused&pool=tiny&text=a%26b&sort=-reward"
    assert found.address(cursor="y~live-2").endswith("cursor=y~live-2&sort=-reward")
    assert found.sorted_by("reward").endswith("sort=reward")
    assert found.sorted_by("id").endswith("sort=id")
    assert found.sorted_by("created") == "state=running&state=paused&pool=tiny&text=a%26b"
    assert (found.direction("reward"), found.direction("id")) == ("descending", None)


WHOLE = (4, 5, 7, 10, 10.5)
"""Ends of a step's stages, in seconds after its admission."""


def times(*steps: tuple[float, Sequence[float | None]], task: str = "a") -> TaskTimes:
    """Of steps that are admitted then, and whose stages end so."""
    ends = [[one[1][stage] for one in steps] for stage in range(5)]
    return TaskTimes(task=task, steps=pack_steps(range(1, len(steps) + 1), [one[0] for one in steps], ends))


def test_spans_of_a_step_are_its_stages() -> None:
    assert line_of(times((10, WHOLE))).spans.tolist() == [[[10, 14], [14, 15], [15, 17], [17, 20], [20, 20.5]]]


def test_stage_that_has_not_ended_or_ended_before_it_began_has_no_length() -> None:
    with_trainer = line_of(times((10, (4, 5, None, None, None))))
    skewed = line_of(times((10, (4, 5, -5, 10, 10.5))))

    assert np.isnan(with_trainer.spans[0, :, 0]).tolist() == [False, False, True, True, True]
    assert with_trainer.totals == [4, 1, 0, 0, 0]
    assert skewed.totals == [4, 1, 0, 15, 0.5]


def test_timeline_adds_up_stages_and_sends_times_from_its_begin() -> None:
    line = line_of(times((10, WHOLE), (20, WHOLE)))
    data: dict[str, Any] = as_data([line], {"a": "/ui/tasks/a"})
    of_task = data["tasks"][0]

    assert (line.steps, line.totals) == (2, [8, 2, 4, 6, 1])
    assert data["begun_s"] == 10
    assert np.frombuffer(b64decode(of_task["begins"]), "<f8").tolist() == [0, 10]
    assert np.frombuffer(b64decode(of_task["versions"]), "<i4").tolist() == [1, 2]
    assert np.frombuffer(b64decode(of_task["ms"]), "<i4").tolist() == [4000, 5000, 7000, 10000, 10500] * 2
    assert as_data([], {})["tasks"] == []


def test_load_is_of_all_tasks_at_once() -> None:
    lines = [line_of(times((0, WHOLE), (4, WHOLE))), line_of(times((0, WHOLE), (20, (10, None, None, None, None)), task="b"))]
    sampling, batch, trainer, *_ = load_of(lines)

    assert (sampling.mean, sampling.highest, sampling.busy) == pytest.approx((22 / 30, 2, 18 / 30))
    assert (batch.mean, batch.highest, batch.busy) == pytest.approx((3 / 30, 2, 2 / 30))
    assert (trainer.mean, trainer.highest, trainer.busy) == pytest.approx((6 / 30, 2, 4 / 30))
    assert load_of([])[0].highest == 0


def test_packed_steps_are_as_they_were() -> None:
    extreme = [[0.0], [1e12], [-1e12], [None], [-0.0015]]
    (record,) = unpack_steps(pack_steps([7], [1.5e9], extreme))
    assert (record["version"], record["admitted_s"]) == (7, 1.5e9)
    assert record["ms"].tolist() == [0, 2**31 - 1, -(2**31) + 1, MISSING, -2]


def test_specs_differ_by_field() -> None:
    one = {"steps": 3, "optimizer": {"learning_rate": 0.1, "eps": 1e-8}, "environment": {"options": {"a": 1}}}
    other = {"steps": 3, "optimizer": {"learning_rate": 0.2, "eps": 1e-8}, "environment": {"options": {"a": 2}}, "seed": 1}

    assert flat(one)[1] == ("optimizer.learning_rate", "0.1")
    assert [(row.path, row.values) for row in differences([one, other])] == [
        ("optimizer.learning_rate", ["0.1", "0.2"]),
        ("environment.options", ['{"a": 1}', '{"a": 2}']),
        ("seed", [None, "1"]),
    ]


def test_runs_share_the_axis_of_a_chart() -> None:
    runs = [Run("a", {}, [step(1), step(2)], [evaluation(2)]), Run("b", {"evaluation": {"protocol": [{"name": "x"}]}}, [step(2)], [])]
    charts = {one.title: one for one in compared(runs, "step")}

    assert charts["Reward"].series == ("a", "b")
    assert [(row.x, row.values) for row in charts["Reward"].rows] == [(1, (0.1, None)), (2, (0.2, 0.2))]
    assert charts["Evaluation"].series == ("a",)


def test_usage_is_added_by_kind_and_its_table_is_safe_in_a_spreadsheet() -> None:
    def line(day: int, kind: str, quantity: int, money: str) -> InvoiceLine:
        return InvoiceLine(day=date(2026, 1, day), tenant="=1+1", pool="tiny", kind=kind, quantity=quantity, money=Decimal(money))

    lines = [line(1, "prompt", 5, "0.1"), line(2, "prompt", 7, "0.2"), line(2, "sampled", 1, "1")]
    tasks = [TaskUsage(task="few", prompt_tokens=1), TaskUsage(task="many", sampled_tokens=9, served_prompt_tokens=2, adapter_bytes=5)]
    tenants = [
        TenantUsage(
            tenant=name,
            live_tasks=0,
            prompt_tokens=3,
            sampled_tokens=9,
            served_prompt_tokens=7,
            adapter_bytes=5,
            package_bytes=one,
            env_ms=0,
        )
        for one, name in enumerate("ab")
    ]
    found = usage_page(Ledger(lines, [], [], tenants, tasks))

    assert [(total.kind, total.quantity, total.money) for total in found.totals] == [("prompt", 12, Decimal("0.3")), ("sampled", 1, 1)]
    assert found.money == Decimal("1.3")
    assert [task.task for task in found.tasks.items] == ["many", "few"]
    assert (found.all.tokens, found.all.stored_bytes) == ((6, 18, 0, 0, 14), 11)
    assert (found.others.tokens, found.others.stored_bytes) == ((5, 9, 0, 0, 12), 6)
    assert list(csv.reader(io.StringIO(as_csv(lines))))[1] == ["2026-01-01", "'=1+1", "tiny", "prompt", "5", "0.1"]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (text.number(None), "–"),
        (text.number(1234.5678), "1,234.568"),
        (text.number(0.00001234), "1.23e-05"),
        (text.number(0.0), "0.000"),
        (text.whole(1234567), "1,234,567"),
        (text.size(512), "512 B"),
        (text.size(3 * 1024**2), "3.0 MiB"),
        (text.size(5 * 1024**5), "5120.0 TiB"),
        (text.moment(0), "1970-01-01 00:00:00"),
    ],
)
def test_figures(shown: str, expected: str) -> None:
    assert shown == expected
