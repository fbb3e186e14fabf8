"""Results that benchmarks compute from measurements, on cases worked out by hand."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from bench import pages
from bench.charts import tables
from bench.fairness import compared
from bench.harness import report
from bench.harness.load.injected import Times, Work, lower_bounds, turn_s
from bench.harness.load.standins import SampledSpan, Trace, TrainedSpan
from bench.harness.measures import timeline

TIMES = Times(sample_s=0.1, environment_s=0.2, train_s=0.05)


def test_injected_times_depend_on_nothing_but_their_turn() -> None:
    assert turn_s(TIMES, "a", 0, 1, 2) == turn_s(TIMES, "a", 0, 1, 2)
    drawn = [turn_s(TIMES, "a", 0, member, 0) for member in range(1000)]
    assert all(0.05 <= sample <= 0.15 and 0.1 <= environment <= 0.3 for sample, environment in drawn)
    assert sum(sample for sample, _ in drawn) / 1000 == pytest.approx(0.1, rel=0.03)


def test_limits_of_one_task_are_its_chain() -> None:
    found = lower_bounds(TIMES, Work(tasks=1, steps=3, groups_per_step=1, group_size=1, turns=1, places=4), ["a"])
    chain = sum(sum(turn_s(TIMES, "a", step, 0, 0)) + 0.05 for step in range(3))
    assert found.sequential == found.synchronous == found.chain == found.asynchronous == pytest.approx(chain)
    assert found.busiest == "chain"
    assert found.closed_form == pytest.approx(chain / 3 / 0.05)


def test_stolen_time_is_a_share_of_what_was_wanted() -> None:
    class CpuTimes(NamedTuple):
        user: float
        system: float
        idle: float
        iowait: float
        steal: float
        guest: float

    before, after = CpuTimes(10, 5, 100, 1, 2, 7), CpuTimes(12, 6, 190, 3, 3, 9)
    assert report.stolen_share(before, after) == 0.25  # of 2 + 1 + 1 s; a guest's are among the user's
    assert report.stolen_share(before, before) == 0.0


def test_many_tasks_are_limited_by_steps_taken_one_at_a_time() -> None:
    names = [f"t{number}" for number in range(64)]
    found = lower_bounds(TIMES, Work(tasks=64, steps=2, groups_per_step=1, group_size=2, turns=1, places=1000), names)
    assert found.busiest == "trainer"
    first = min(max(sum(turn_s(TIMES, name, 0, member, 0)) for member in range(2)) for name in names)
    assert found.asynchronous == pytest.approx(first + 64 * 2 * 0.05)
    assert found.sequential > found.synchronous > found.asynchronous


def test_idle_time_goes_to_where_the_tasks_were() -> None:
    # One place of two is taken for 2 s of 4; then a second of environment, then a second of training.
    trace = Trace([SampledSpan("a", 0, 0, 0, 0.0, 0.0, 2.0, environment_s=1.0)], [TrainedSpan("a", 0, 3.0, 3.0, 4.0)])
    sampler, trainer = timeline.uses(trace, 0.0, {"a": 4.0}, places=2)
    assert (sampler.busy, sampler.in_use) == (0.25, 0.5)
    assert {place: share for place, share in sampler.idle_by_cause.items() if share} == {
        "sampling": 0.25,
        "environment": 0.25,
        "training": 0.25,
    }
    assert trainer.busy == 0.25
    assert {place: share for place, share in trainer.idle_by_cause.items() if share} == {"sampling": 0.5, "environment": 0.25}
    assert sum(sampler.idle_by_cause.values()) + sampler.busy == 1


def test_a_task_on_its_way_between_services_is_held() -> None:
    trace = Trace([SampledSpan("a", 0, 0, 0, 1.0, 1.0, 2.0, environment_s=0.0)], [TrainedSpan("a", 0, 3.0, 3.0, 4.0)])
    _, trainer = timeline.uses(trace, 0.0, {"a": 4.0}, places=1)
    assert trainer.idle_by_cause["held"] == 0.5


def test_step_times_run_from_step_to_step() -> None:
    assert timeline.step_times([("a", 1, 5.0, 9.0), ("a", 0, 1.0, 4.0), ("b", 0, 0.0, 2.0)]) == [3.0, 5.0, 2.0]


def test_added_latency_is_what_lies_between_a_turn_and_the_next_beyond_the_environment() -> None:
    first = SampledSpan("a", 0, 0, 0, 0.0, 0.0, 1.0, environment_s=0.5)
    second = SampledSpan("a", 0, 0, 1, 1.75, 1.75, 2.0, environment_s=0.0)
    assert timeline.added_latencies(Trace([second, first], [])) == [0.25]


def test_lanes_join_what_overlaps() -> None:
    joined = [((0, 0, 0), 0.0, 2.0), ((0, 1, 0), 1.0, 3.0), ((1, 0, 0), 5.0, 6.0)]
    spans = [SampledSpan("a", *where, begins, begins, ends, 0.0) for where, begins, ends in joined]
    assert timeline.lanes(Trace(spans, []), 0.0)["a"]["sampling"] == [(0.0, 3.0), (5.0, 1.0)]


def test_only_what_is_between_the_marks_is_rewritten() -> None:
    text = "before\n<!-- scaling: made by bench.pages -->\nold\n<!-- end -->\nafter\n"
    made: dict[str, pages.Table] = {"scaling": lambda result: f"table of {result['x']}"}
    assert pages.page(text, {"scaling": {"x": 7}}, made) == text.replace("old", "table of 7")
    assert pages.page(text, {}, made) == text


def test_pages_hold_the_tables_that_their_results_make() -> None:
    """Repair with `python -m bench.pages`."""
    for path, text in pages.pages().items():
        assert path.read_text() == text, path.name


def test_tables_are_made_of_what_was_measured() -> None:
    machine = {"cores": 2, "processor": "x", "load_before": 0.1}
    side = {"train_s": 4.0, "cpu_s": 6.0, "with_starts_s": 9.0, "reward": {"first": 0.1, "last": 0.5}, "reached": 0.25, "peak_mib": 7}
    side |= {"all_train_s": [3.0, 4.0, 5.0]}
    result = {"machine": machine, "options": {"tasks": 2, "steps": 3, "groups": 4, "size": 5, "staleness": 0}, "single": {"marlaas": side}}
    assert "| single | marlaas | 4.0 (3.0 – 5.0) | 6.0 | 9.0 | 0.100 → 0.500 | 0.250 | 7 |" in tables.trl(result)
    side["all_reached"], result["options"]["our_steps"] = [0.25, 0.5, 0.2], 2
    assert "ours may be 0 versions behind, and take 2 steps." in tables.trl(result)
    assert "| 0.250 (0.200 – 0.500) | 7 |" in tables.trl(result)
    decisions = {"10 tasks, one tenant": {"p50_ms": 1.5, "p90_ms": 2.5, "scheduler_cpu_p50_ms": 0.5}}
    made = tables.machinery({"machine": machine, "decisions": decisions})
    assert "| one admission, 10 tasks, one tenant, ms | 1.5 (p90 2.5), of it in the scheduler's process 0.5 |" in made


def test_result_says_how_fast_the_machine_was_before_and_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    described = report.machine()
    report.write("x", {"machine": described, "decisions": {}})
    result = report.read("x")
    before, after = result["machine"]["fixed_work_ms"]
    assert min(before, after) > 0.5, "milliseconds, of a sum that takes some anywhere"
    stolen = result["machine"]["stolen_share"]
    assert 0 <= stolen < 1
    assert f"sum {before:.1f} and {after:.1f} ms, {stolen:.0%} stolen." in tables.machinery(result)


def test_result_has_a_run_on_each_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    runs = [{"name": f"run {number}", "values": list(range(60))} for number in range(3)]
    written = report.write("x", {"runs": runs, "options": {"tasks": 2}, "by_name": {"long": {"a": "x" * 150, "b": 1}}}).read_text()
    lines = written.splitlines()
    assert [line for line in lines if "run 1" in line] == [f"  {json.dumps(runs[1])},"]
    assert ' "options": {"tasks": 2},' in lines
    assert '   "b": 1' in lines
    result = json.loads(written)
    assert (result["runs"], result["by_name"]["long"]["b"]) == (runs, 1)
    series = report.text_of([{"values": [{"at_s": number} for number in range(1000)]}]).splitlines()
    assert max(map(len, series)) < 100, "a row of many rows has lines of its own"


def test_tenant_farthest_off_its_due_counts() -> None:
    found = compared({"one": 20.0, "many": 80.0}, {"one": 1, "many": 3})
    assert found["share"] == {"one": 0.2, "many": 0.8}
    assert found["off"] == 0.2
    assert compared({"one": 5.0, "many": 5.0}, {"one": 1, "many": 1})["off"] == 0.0
