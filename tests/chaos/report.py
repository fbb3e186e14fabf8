"""Results of a chaos run: recoveries, their percentiles by kind of fault, and the file of several runs."""

import json
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.harness.report import ROOT, machine, percentile, text_of

MEASURES = (
    "common",
    "env_svc",
    "marlaas",
    "migrations",
    "models/tiny",
    "pools.toml",
    "rollout_svc",
    "scheduler_svc",
    "tests/chaos",
    "trainer_svc",
)
"""Paths whose change makes a result old."""
P90_LIMIT_S, MAX_LIMIT_S = 8.0, 12.0
"""Limits in seconds of the p90 and the maximum of recoveries, where no engine started."""
BEYOND_ENGINE_LIMIT_S = 8.0
"""Limit in seconds of a recovery beyond the start of an engine that the fault ended."""


@dataclass(frozen=True)
class Recovery:
    """One fault, and the duration of its effects."""

    kind: str
    took_s: float
    """Seconds from the fault's end until every process was ready and another step was trained."""
    engine_start_s: float | None
    """Seconds from the start of the sampler's process until it was ready, where the fault ended it; else None."""

    @property
    def beyond_engine_s(self) -> float:
        return self.took_s - (self.engine_start_s or 0.0)


@dataclass
class Report:
    """Results of a run."""

    seed: int
    faults: int = 0
    tasks: int = 0
    """Finished tasks; four ran at a time."""
    steps: int = 0
    trajectories: int = 0
    """Trained steps."""
    void_groups: dict[str, int] = field(default_factory=dict[str, int])
    """Reason → number of void groups, which were resampled: they cost only time."""
    recoveries: list[Recovery] = field(default_factory=list[Recovery])
    points_reached: dict[str, int] = field(default_factory=dict[str, int])
    """Crash point → number of deaths there."""
    chats: dict[str, int] = field(default_factory=dict[str, int])
    """Answers to chats beside the tasks, by status or the error's code."""
    doctor: str = ""
    replayed_steps: int = 0
    """Replayed steps; adapter and checkpoint of each had the run's digests."""
    took_s: float = 0.0


def seconds(values: Iterable[float]) -> dict[str, float]:
    """Their number, median, 90th percentile and maximum."""
    known = list(values)
    named = (("p50", 0.5), ("p90", 0.9), ("max", 1.0))
    return {"times": len(known), **{name: round(percentile(known, share), 2) for name, share in named}}


def summary(recoveries: Sequence[Recovery]) -> dict[str, dict[str, float]]:
    """Recoveries of all faults: without the end of an engine, and beyond an engine's start."""
    return {
        "without_engine": seconds(one.took_s for one in recoveries if one.engine_start_s is None),
        "beyond_engine": seconds(one.beyond_engine_s for one in recoveries if one.engine_start_s is not None),
    }


def by_kind(recoveries: Sequence[Recovery], group: Callable[[str], str] = str) -> dict[str, dict[str, float]]:
    """Kind of fault, or group of kinds → seconds of each recovery."""
    found: dict[str, list[float]] = {}
    for one in recoveries:
        found.setdefault(group(one.kind), []).append(one.took_s)
    return {kind: seconds(taken) for kind, taken in sorted(found.items())}


def table(report: Report) -> str:
    """The report as text for a terminal."""
    head = f"{'fault':36} {'times':>5} {'p50':>7} {'p90':>7} {'max':>7}   seconds until another step was trained"
    totals = summary(report.recoveries)
    return "\n".join(
        [
            head,
            *(_line(kind, row) for kind, row in by_kind(report.recoveries).items()),
            _line(f"no engine ended (limits {P90_LIMIT_S:g} and {MAX_LIMIT_S:g})", totals["without_engine"]),
            _line(f"beyond an engine's start (limit {BEYOND_ENGINE_LIMIT_S:g})", totals["beyond_engine"]),
            f"{report.faults} faults in {report.took_s:.0f} s; {report.tasks} tasks finished, four at a time: {report.steps} steps, "
            f"{report.trajectories} trajectories",
            f"void groups, resampled: {report.void_groups}",
            f"chats: {report.chats}",
            f"died at crash points: {report.points_reached}",
            f"doctor: {report.doctor}",
            f"replayed with equal digests: {report.replayed_steps} steps",
        ]
    )


def _line(name: str, row: dict[str, float]) -> str:
    return f"{name:36} {row['times']:5.0f} {row['p50']:7.1f} {row['p90']:7.1f} {row['max']:7.1f}"


def keep(path: Path, report: Report, before: dict[str, object]) -> None:
    """Add the run to those of the same commit in `path`; one with the same seed is replaced. `before`: `origin()` at its begin."""
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    runs = [run for run in known.get("runs", []) if run["seed"] != report.seed] if known.get("commit") == before["commit"] else []
    runs.append(asdict(report) | {key: before[key] for key in ("date", "machine")})
    recoveries = recoveries_of(runs)
    result = {
        **before,
        "command": "make chaos CHAOS='--faults N --seed S --json FILE'",
        "measures": list(MEASURES),
        "limits_s": {"without_engine": {"p90": P90_LIMIT_S, "max": MAX_LIMIT_S}, "beyond_engine": {"max": BEYOND_ENGINE_LIMIT_S}},
        "seconds": summary(recoveries),
        "by_kind": by_kind(recoveries),
        "runs": runs,
    }
    path.write_text(text_of(result) + "\n")


def recoveries_of(runs: Iterable[dict[str, Any]]) -> list[Recovery]:
    """Recoveries of several runs, from `keep`'s file."""
    return [Recovery(**one) for run in runs for one in run["recoveries"]]


def origin() -> dict[str, object]:
    """Commit, date and machine of a run."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=10"], cwd=ROOT, capture_output=True, text=True)
    return {"commit": commit.stdout.strip() or "unknown", "date": datetime.now(UTC).date().isoformat(), "machine": machine()}
