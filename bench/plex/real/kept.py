"""Finished runs on this machine, by the commit that made them. What is there is not repeated: a program may be stopped and resumed."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.harness import report
from bench.plex.real.workloads import Workload

MEASURES = ("bench/plex/real", *report.CODE)
FOLDER = report.ROOT / ".marlaas" / "plex"


def kept_in(folder: Path, name: str, *, forget: bool = False) -> Path:
    """Where finished runs of this commit are. `forget`: without any."""
    found = folder / "runs" / f"{name}-{report.commit()[:12]}"
    if forget:
        shutil.rmtree(found, ignore_errors=True)
    found.mkdir(parents=True, exist_ok=True)
    return found


def runs_in(kept: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(kept.glob("*.json"))]


def in_result(run: Mapping[str, Any]) -> dict[str, Any]:
    """What a result has of a run: not its trace, digests of adapters and windows of computing."""
    recorded = [{key: value for key, value in part.items() if key != "together"} for part in run["recorded"]]
    return {key: value for key, value in run.items() if key not in ("trace", "digests")} | {"recorded": recorded}


def name_of(workload: Workload, device: str = "cpu") -> str:
    return f"{workload.name}-{device.replace(':', '')}"
