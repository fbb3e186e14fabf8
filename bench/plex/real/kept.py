"""Finished runs on this machine, by the commit that made them. What is there is not repeated: a program may be stopped and resumed."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.harness import report
from bench.harness.services import BenchError
from bench.plex.real.arms import Arm
from bench.plex.real.workloads import Workload

MEASURES = ("bench/plex/real", *report.CODE)
FOLDER = report.ROOT / ".marlaas" / "plex"


def kept_in(folder: Path, name: str, commit: str | None = None, *, forget: bool = False) -> Path:
    """Where finished runs of a commit are; None: of this one. `forget`: without any."""
    found = folder / "runs" / f"{name}-{(commit or report.commit())[:12]}"
    if forget:
        shutil.rmtree(found, ignore_errors=True)
    found.mkdir(parents=True, exist_ok=True)
    return found


def runs_in(kept: Path, start: str = "") -> list[dict[str, Any]]:
    """Finished runs whose file's name begins with `start`."""
    return [json.loads(path.read_text()) for path in sorted(kept.glob(f"{start}*.json"))]


def earlier_runs(result: Mapping[str, Any], workload: Workload, kept: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Runs of a result, without those in `kept`. Raises: BenchError when the result is of another workload of that name."""
    if not result:
        return []
    if result["workload"] != json.loads(json.dumps(asdict(workload))):
        raise BenchError(f"the result's runs are of another workload than {workload.name} is now; measure without --add")
    known = [without_trace(one) for one in kept]
    return [run for one in result["runs"] if (run := {"commit": result["commit"], **one}) not in known]


def without_trace(run: Mapping[str, Any]) -> dict[str, Any]:
    """What a result has of a run."""
    return {key: value for key, value in run.items() if key != "trace"}


def name_of(workload: Workload, device: str = "cpu") -> str:
    return f"{workload.name}-{device.replace(':', '')}"


@dataclass(frozen=True)
class Kept:
    """Finished runs of a commit."""

    folder: Path
    commit: str

    def runs(self, workload: Workload, arm: Arm) -> list[dict[str, Any]]:
        """Raises: BenchError when there are none."""
        if runs := runs_in(kept_in(self.folder, name_of(workload), self.commit), f"{arm.file_name}-[0-9]"):
            return runs
        missing = f"python -m bench.plex.real {workload.name} --arms {arm.name}"
        raise BenchError(f"there are no runs of {workload.name} under {arm.name}: {missing}")
