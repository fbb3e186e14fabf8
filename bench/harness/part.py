"""Results and phases of a part of `bench.gpu`, in a file of JSON lines that outlives its processes.

`bench.gpu` names the file in the environment; elsewhere nothing is written.
"""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

FILE = "BENCH_PART"
"""Variable with the file's path; all processes of a part inherit it."""
UNTIL = "BENCH_PART_UNTIL"
"""Variable with the end of the part's time, in Unix seconds."""
END_S = 12.0
"""Seconds in which a stack stops and a program writes its figures."""


class Phase(NamedTuple):
    """Times are Unix seconds."""

    name: str
    began_s: float
    ended_s: float


def is_running() -> bool:
    """Whether this process belongs to a part."""
    return FILE in os.environ


def keep(found: Mapping[str, Any]) -> None:
    """Add results; a later value of a name replaces an earlier one."""
    _append({"found": found})


def keep_logs(folder: Path) -> None:
    """Copy these logs beside the part's results."""
    if is_running() and folder.exists():
        shutil.copytree(folder, Path(os.environ[FILE]).with_suffix(".logs"), dirs_exist_ok=True)


def end_in_order() -> None:
    """From now on SIGTERM, which a part gets when its time is over, leaves open blocks in order."""
    if is_running():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))


def left_s(most_s: float) -> float:
    """Seconds that a part may still measure, `most_s` at most, to end by itself within its time."""
    return min(most_s, float(os.environ.get(UNTIL, "inf")) - time.time() - END_S)


@contextmanager
def phase(name: str) -> Generator[None]:
    """Time of the block; phases of one name are summed."""
    _append({"phase": name, "at_s": time.time(), "begins": True})
    try:
        yield
    finally:
        _append({"phase": name, "at_s": time.time(), "begins": False})


def _append(line: Mapping[str, Any]) -> None:
    if path := os.environ.get(FILE):
        with Path(path).open("a") as file:
            file.write(json.dumps(line) + "\n")


def read(path: Path, ended_s: float) -> tuple[dict[str, Any], list[Phase]]:
    """Results and phases. A phase that was cut off ends at `ended_s`, and a line that was cut off is left out."""
    found: dict[str, Any] = {}
    began: dict[str, float] = {}
    phases: list[Phase] = []
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if "found" in line:
            found |= line["found"]
        elif line["begins"]:
            began[line["phase"]] = line["at_s"]
        elif line["phase"] in began:
            phases.append(Phase(line["phase"], began.pop(line["phase"]), line["at_s"]))
    return found, [*phases, *(Phase(name, at_s, ended_s) for name, at_s in began.items())]
