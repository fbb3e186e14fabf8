"""Tiers of tests. `--quick` leaves out what starts whole services or waits for seconds: `make test` does, `.ci/run` does not.

Of those that `.ci/run` leaves out, `--tier NAME` runs one, and writes its commit, date and result to `tiers.json`.
"""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

RECORDED = Path(__file__).with_suffix(".json")
OUTCOMES = ("passed", "failed", "error", "skipped")


WHOLE = (
    "tests/bench/",
    "tests/common/access/test_blobs",
    "tests/common/access/test_cluster",
    "tests/common/access/test_protocol",
    "tests/common/leases/test_killing",
    "tests/common/test_cluster",
    "tests/compose/",
    "tests/e2e/",
    "tests/env/builtin/test_code",
    *(f"tests/env/{subject}" for subject in ("adapters/", "check/", "hosted/", "packages/", "sandboxes/", "service/", "test_main")),
    *(f"tests/gateway/{subject}" for subject in ("dashboard/", "openai/", "test_hostile_bodies", "test_http_keys", "test_process")),
    "tests/marlaas/",
    "tests/models/",
    "tests/oracle/",
    *(f"tests/rollout/{subject}" for subject in ("parking/", "test_adapters", "test_calculator", "test_engine", "test_inherited")),
    *(f"tests/rollout/test_{subject}" for subject in ("process", "service", "stop_strings")),
    "tests/scheduler/ask/test_histories",
    "tests/scheduler/doctor/",
    "tests/scheduler/handlers/test_deletion_race",
    "tests/scheduler/maintenance/test_store_consistency",
    "tests/scheduler/test_secrets",
    "tests/scheduler/test_tenant_deletion",
    "tests/serving/",
    *(f"tests/trainer/test_{subject}" for subject in ("memory", "merge", "process", "replay")),
)
"""Beginnings of the paths of tests that start services, stacks, engines, browsers or clusters, or wait for them for seconds."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="Leave out the tests that start whole services.")
    parser.addoption("--tier", help=f"Run the tests with this mark; a whole run is recorded in {RECORDED.name}.")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if tier := config.getoption("tier"):
        config.option.markexpr = tier
        is_whole = not config.option.keyword and config.args_source == pytest.Config.ArgsSource.TESTPATHS
        if is_whole and not config.option.collectonly and not hasattr(config, "workerinput"):
            config.pluginmanager.register(Recording(tier))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Not imported either: that takes a third as long as all other tests' collection."""
    left_out = config.getoption("quick") and str(collection_path.relative_to(config.rootpath)).startswith(WHOLE)
    return True if left_out else None


class Recording:
    """Of the process that collects the results of the others."""

    def __init__(self, tier: str) -> None:
        self._tier = tier
        self._began = time.monotonic()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return  # interrupted, or not begun
        found = {outcome: len(terminalreporter.stats.get(outcome, ())) for outcome in OUTCOMES}
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=RECORDED.parent
        ).stdout.strip()
        line = {
            "commit": commit,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            **found,
            "minutes": round((time.monotonic() - self._began) / 60, 1),
            "cores": len(os.sched_getaffinity(0)),
        }
        write(recorded() | {self._tier: line})
        terminalreporter.write_line(f"tests/{RECORDED.name}: {self._tier}: {line}")


def recorded() -> dict[str, dict[str, str | float]]:
    """The latest whole run of each tier; empty where there was none."""
    return json.loads(RECORDED.read_text()) if RECORDED.exists() else {}


def write(runs: dict[str, dict[str, str | float]]) -> None:
    """A line for each tier."""
    lines = ",\n".join(f"{json.dumps(tier)}: {json.dumps(run)}" for tier, run in sorted(runs.items()))
    RECORDED.write_text(f"{{\n{lines}\n}}\n")
