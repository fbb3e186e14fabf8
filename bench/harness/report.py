"""Header and location of every benchmark's JSON."""

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from bench.harness import part

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(os.environ.get("BENCH_RESULTS") or ROOT / "bench" / "results")
"""Folder of results; the variable is for tests, whose results are discarded."""
IMAGES = RESULTS if "BENCH_RESULTS" in os.environ else ROOT / "docs" / "images"
PROCESSOR_TIMES = psutil.cpu_times()
"""Processor times of all cores at this process's start."""
FIXED_WORK = """
import time
ended, took = time.perf_counter() + 1.0, []
while time.perf_counter() < ended:
    began = time.perf_counter()
    sum(number * number for number in range(100_000))
    took.append(time.perf_counter() - began)
print(sorted(took)[len(took) // 2])
"""
MAX_LINE, MAX_ROW = 140, 2500
"""Maximum characters of a line of a result; of one that is an item of a list."""
CODE = ("common", "env_svc", "marlaas", "migrations", "models/tiny", "pools.toml", "rollout_svc", "scheduler_svc", "trainer_svc")
"""Paths that a benchmark measures unless it names others."""


def machine() -> dict[str, object]:
    """The machine and its load; call it before the measurement."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "load_before": load_now(),
        "fixed_work_ms": [fixed_work_ms()],
    }


def load_now() -> float:
    """Load average of a minute."""
    return round(psutil.getloadavg()[0], 1)


def fixed_work_ms() -> float:
    """Median milliseconds of a fixed sum in Python, on all cores concurrently for a second: the machine's present speed.

    A shared machine may be half as fast for hours, which neither its load nor its stolen time shows.
    """
    command = [sys.executable, "-c", FIXED_WORK]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in os.sched_getaffinity(0)]
    return round(1000 * statistics.mean(float(process.communicate()[0]) for process in running), 2)


def stolen_share(before: Any, after: Any) -> float:
    """Share of the cores' wanted time that the host gave to other machines, from two `psutil.cpu_times`.

    Zero where the system does not report it, as on bare metal.
    """
    gone = {name: getattr(after, name) - getattr(before, name) for name in after._fields if name not in ("guest", "guest_nice")}
    wanted = sum(gone.values()) - gone["idle"] - gone.get("iowait", 0.0)
    return round(gone.get("steal", 0.0) / wanted, 3) if wanted > 0 else 0.0


def write(name: str, result: dict[str, object], measures: Sequence[str] = CODE) -> Path:
    """Keep `result` as bench/results/<name>.json, with commit, date, command, and the machine's speed afterwards, and for its part of
    `bench.gpu`.

    `measures`: paths whose change makes the numbers old (`bench.quotes`).
    """
    part.keep({key: value for key, value in result.items() if key != "machine"})
    command = " ".join(["python", *sys.orig_argv[1:]])
    source = {"commit": commit(), "date": datetime.now(UTC).date().isoformat(), "command": command, "measures": list(measures)}
    result = source | result
    described = result.get("machine")
    if isinstance(described, dict) and "fixed_work_ms" in described:
        described["stolen_share"] = stolen_share(PROCESSOR_TIMES, psutil.cpu_times())
        described["fixed_work_ms"] = [*described["fixed_work_ms"][:1], fixed_work_ms()]
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(text_of(result) + "\n")
    return path


def text_of(value: object, indent: int = 0) -> str:
    """JSON with a run, a row, or whatever else is short, on each line."""
    flat, inside = json.dumps(value), " " * (indent + 1)
    if len(flat) + indent <= MAX_LINE or not isinstance(value, dict | list):
        return flat
    if isinstance(value, dict):
        lines = [f"{json.dumps(key)}: {text_of(each, indent + 1)}" for key, each in value.items()]
    else:
        lines = [row if len(row := json.dumps(each)) <= MAX_ROW else text_of(each, indent + 1) for each in value]
    first, last = flat[0], flat[-1]
    return f"{first}\n{inside}" + f",\n{inside}".join(lines) + f"\n{' ' * indent}{last}"


def commit() -> str:
    """`BENCH_COMMIT`, or the checked-out commit, marked where files differ from it; empty without git or outside a repository."""
    if given := os.environ.get("BENCH_COMMIT"):
        return given
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def read(name: str) -> dict[str, Any]:
    """An earlier run's result; empty when there was none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Percentiles for tables, rounded to thousandths."""
    return {name: round(percentile(values, share), 3) for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))}


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of them lie, nearest rank; 0 when there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
