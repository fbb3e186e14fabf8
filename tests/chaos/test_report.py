"""Reports of recoveries, and the file of several runs."""

import json
from pathlib import Path
from random import Random

from bench.charts.recovery_table import chaos, fault
from tests.chaos.faults import kinds_for
from tests.chaos.report import Recovery, Report, by_kind, keep, summary, table
from tests.chaos.target import SERVICES, Target
from tests.support.clock import Clocks
from tests.support.proxy import Wire


def run(seed: int, *recoveries: Recovery) -> Report:
    return Report(seed, faults=len(recoveries), recoveries=list(recoveries))


def test_start_of_an_engine_does_not_count_and_other_recoveries_count_whole() -> None:
    quick = [Recovery("kill env", float(number), None) for number in range(1, 11)]
    found = summary([*quick, Recovery("kill rollout-tiny", 19.0, 12.5)])
    assert found["without_engine"] == {"times": 10, "p50": 6.0, "p90": 10.0, "max": 10.0}
    assert found["beyond_engine"] == {"times": 1, "p50": 6.5, "p90": 6.5, "max": 6.5}


def test_each_kind_has_its_percentiles_in_the_table() -> None:
    report = run(0, Recovery("kill env", 3.0, None), Recovery("kill env", 5.0, None), Recovery("slow nats", 0.5, None))
    assert by_kind(report.recoveries)["kill env"] == {"times": 2, "p50": 5.0, "p90": 5.0, "max": 5.0}
    assert next(line.split() for line in table(report).splitlines() if line.startswith("kill env")) == [
        "kill",
        "env",
        "2",
        "5.0",
        "5.0",
        "5.0",
    ]


def test_runs_of_one_commit_gather_and_those_of_another_are_dropped(tmp_path: Path) -> None:
    path, one, other = tmp_path / "chaos.json", Recovery("kill env", 3.0, None), Recovery("kill env", 9.0, None)
    for commit, report in (("old", run(0, other)), ("new", run(1, other)), ("new", run(2, one)), ("new", run(1, one, one))):
        keep(path, report, {"commit": commit, "date": "2026-01-01", "machine": {}})
    kept = json.loads(path.read_text())
    assert sorted(one["seed"] for one in kept["runs"]) == [1, 2]
    assert kept["seconds"]["without_engine"] == {"times": 3, "p50": 3.0, "p90": 3.0, "max": 3.0}
    assert (kept["commit"], kept["date"]) == ("new", "2026-01-01")


async def test_every_kind_of_fault_has_its_row_in_the_page(tmp_path: Path) -> None:
    async def no_tasks() -> list[str]:
        return []

    wires = {name: Wire(name, 0) for name in (*(f"{service}-nats" for service in SERVICES), "scheduler-postgres")}
    target = Target(tmp_path, "", Random(0), wires, Clocks(tmp_path), tmp_path, [])
    kinds = [each.kind for each in kinds_for(target, no_tasks)]
    assert len(kinds) > 55
    rows = {kind: fault(kind) for kind in kinds}
    assert (rows["crash env before_ack"], rows["throttle nats"]) == (rows["kill env"], rows["slow postgres"])
    assert len(set(rows.values())) == 15


def test_page_has_the_percentiles_of_all_runs(tmp_path: Path) -> None:
    before: dict[str, object] = {"commit": "abc", "date": "2026-01-01", "machine": {"cores": 2, "load_before": 0.5}}
    for seed, took_s in ((1, 3.0), (2, 5.0)):
        keep(tmp_path / "chaos.json", run(seed, Recovery("kill env", took_s, None), Recovery("kill rollout-tiny", 9.0, 8.0)), before)
    page = chaos(json.loads((tmp_path / "chaos.json").read_text()))
    assert page.startswith("4 faults in 0 minutes, 2 runs with the seeds 1, 2: ")
    assert "| environment service killed, crash points included | 2 | 5.0 | 5.0 | 5.0 |" in page
    assert "**beyond the engine's own start** (limit: max 8) | 2 | 1.0 | 1.0 | 1.0 |" in page
