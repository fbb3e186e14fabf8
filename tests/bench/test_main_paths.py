"""Every benchmark runs from end to end, on a small case whose numbers mean nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

CI: dict[str, str] = {
    "coserving": "full --small",
    "engine": "--requests 4 --tokens 4 --prompt 8 --adapters 1",
    "plex": "cells,histories --small",
    "shared_steps": "--tasks 1,2 --repeats 1 --groups 1 --size 2",
    "stack": "--steps 1",
}
"""Options by program; runs are divided by bars. A start of a stack takes twenty seconds of processor time, so these are one program of each
kind: a sampler alone and one that serves, a trainer, a stack, and simulated accelerators."""
ACCEPTANCE: dict[str, str] = {
    "agentic": "--tasks 2 --policies asynchronous --runs 1 --steps 1 --groups 1 --size 2",
    "curve": "--tasks 2 --steps 1 --groups 1 --size 2 --max-tokens 4",
    "fairness": "--tasks 2 --warm 1 --seconds 2 --jobs 20",
    "gpu": "memory-8b coserving --small --limit 240",
    "head": "--device cpu --prompts 2 --tokens 4",
    "hostile": "--bodies 10 --seconds 3",
    "invariance": "--steps 2 --conditions killed,served",
    "isolation": "--steps 1 --seeds 0",
    "machinery": "--tasks 2 --steps 1 --runs 1 --counts 10",
    "memory": "--model small --tokens 512 --precision float32",
    "plex.real.faults": "--small --only kills",
    "scaling": "--tasks 2 --runs 1 --steps 1",
    "serving": "streams --small",
    "soak": "--minutes 0.2",
    "trl": "--sides ours --workloads single --tasks 1 --steps 1 --runs 1",
}
"""The others. Left out are the parts of `serving` that measure for long (`latency`, `contended`), `weights` and `http` of `coserving`,
and of `gpu` those that are programs of these lists."""
TESTED_ELSEWHERE = {
    "canary",
    "grading",
    "learning",
    "pages",
    "plex.real",
    "plex.real.tiers",
    "quotes",
}
"""Tested by `rollout/test_precision.py`, `test_grading.py`, `test_learning.py` and `test_quotes.py`; the last also by
`make check`. `plex.real` starts the stacks and recorders of `plex.real.faults`;
`plex.real.tiers` has `test_tiers.py`."""

NOT_RUN = {"trl_task"}
"""Started by `bench.trl` in TRL's own environment, which takes minutes to install."""


def runnable() -> set[str]:
    modules = {path.stem for path in (ROOT / "bench").glob("*.py") if 'if __name__ == "__main__"' in path.read_text()}
    return modules | {".".join(path.parent.relative_to(ROOT / "bench").parts) for path in (ROOT / "bench").rglob("__main__.py")}


def test_every_benchmark_is_here() -> None:
    assert not (set(CI) & set(ACCEPTANCE)), "it is in one of the two"
    assert set(CI) | set(ACCEPTANCE) | TESTED_ELSEWHERE | NOT_RUN == runnable()


def runs_of(programs: dict[str, str]) -> list[tuple[str, str]]:
    """Programs with the options of each run."""
    return [(name, options) for name, runs in programs.items() for options in runs.split(" | ")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), runs_of(CI))
def test_benchmark_runs_from_end_to_end(name: str, options: str, tmp_path: Path) -> None:
    run(name, options, tmp_path)


@pytest.mark.acceptance
@pytest.mark.parametrize(("name", "options"), runs_of(ACCEPTANCE))
def test_each_other_benchmark_runs_from_end_to_end(name: str, options: str, tmp_path: Path) -> None:
    run(name, options, tmp_path)


def run(name: str, options: str, results: Path) -> None:
    command = [sys.executable, "-m", f"bench.{name}", *options.split()]
    env = {**os.environ, "BENCH_RESULTS": str(results)}
    found = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=400)
    assert found.returncode == 0, found.stderr[-3000:] + found.stdout[-1000:]
    assert found.stdout.strip() or list(results.glob("*.json"))
