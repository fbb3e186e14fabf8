"""Crash points kill the process that is armed, at the visit that is named, and no other."""

import signal
import subprocess
import sys

import pytest

from common.resilience.crashpoints import NAMES
from tests.support.services import without_settings

VISITS = """
import sys
from common.resilience import crashpoints
from common.runtime.settings import read_or_exit, Settings
crashpoints.arm(read_or_exit(Settings).crash_point)
for visit in range(3):
    for name in crashpoints.NAMES:
        print(name, visit, flush=True)
        crashpoints.reached(name)
"""


def visited(setting: str | None) -> subprocess.CompletedProcess[str]:
    env = without_settings() | ({} if setting is None else {"MARLAAS_CRASH_POINT": setting})
    return subprocess.run([sys.executable, "-c", VISITS], env=env, capture_output=True, text=True, timeout=250)


@pytest.mark.parametrize("name", NAMES)
def test_process_dies_at_the_armed_visit_and_not_before(name: str) -> None:
    done = visited(f"{name}:2")
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.splitlines()[-1] == f"{name} 1"


def test_process_stands_still_where_it_is_to_hang() -> None:
    env = without_settings() | {"MARLAAS_CRASH_POINT": "lease_in_park:2:hang"}
    with subprocess.Popen([sys.executable, "-c", VISITS], env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            while (line := process.stdout.readline()) != "lease_in_park 1\n":
                assert line, "it has ended"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
        finally:
            process.kill()
        assert process.stdout.read() == ""


@pytest.mark.parametrize("setting", [None, ""])
def test_nothing_happens_when_none_is_armed(setting: str | None) -> None:
    done = visited(setting)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 3 * len(NAMES)


@pytest.mark.parametrize("setting", ["nowhere:1", "before_ack", "before_ack:0", "before_ack:1:sleep"])
def test_unknown_point_stops_the_process_with_a_line(setting: str) -> None:
    done = visited(setting)
    assert done.returncode == 2
    assert "MARLAAS_CRASH_POINT" in done.stderr
