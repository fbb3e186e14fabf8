"""Finished runs on this machine, by the commit that made them. What is there is not repeated: a program may be stopped and resumed."""

import json
import shutil
from dataclasses import dataclass
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


def name_of(workload: Workload, device: str = "cpu") -> str:
    return f"{workload.name}-{device.replace(':', '')}"


@dataclass(frozen=True)
class Kept:
    """Finished runs of a commit."""

    folder: Path
    commit: str

    def runs(self, workload: Workload, arm: Arm) -> list[dict[str, Any]]:
        """Raises: BenchError when there are none."""
        found = kept_in(self.folder, name_of(workload), self.commit).glob(f"{arm.file_name}-[0-9]*.json")
        if runs := [json.loads(path.read_text()) for path in sorted(found)]:
            return runs
        missing = f"python -m bench.plex.real {workload.name} --arms {arm.name}"
        raise BenchError(f"there are no runs of {workload.name} under {arm.name}: {missing}")
