"""What every benchmark's JSON begins with, and where it goes."""

import json
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
IMAGES = ROOT / "docs" / "images"


def machine() -> dict[str, object]:
    """What ran it, and how busy it was: call it before anything is measured."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "load_before": round(psutil.getloadavg()[0], 1),
    }


def write(name: str, result: dict[str, object]) -> Path:
    """Keep `result` as bench/results/<name>.json, and print it."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def read(name: str) -> dict[str, Any]:
    """What an earlier run has written; empty when there was none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Percentiles that tables tell, to the thousandth."""
    return {name: round(percentile(values, share), 3) for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))}


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of them lie, nearest rank; 0 when there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
