"""A process that gives no sign of life is ended from outside, whatever keeps it from giving one."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from common.resilience.guardian import guarded
from tests.support.waiting import eventually

GUARDED = """
import ctypes, os, sys, time
from common.resilience.guardian import guarded

with guarded(float(sys.argv[1]), stopped_s=float(sys.argv[2])) as sign:
    for line in sys.stdin:
        if line == "interpreter\\n":
            ctypes.PyDLL(None).sleep(1000)
        if line == "fork\\n" and os.fork() == 0:
            time.sleep(1000)
        end_s = time.monotonic() + float(line) if line[0].isdigit() else 0.0
        while time.monotonic() < end_s:
            sign()
            time.sleep(0.02)
        print("done", flush=True)
"""


@contextmanager
def process(limit_s: float = 1.0, stopped_s: float = 1.0) -> Generator[tuple[subprocess.Popen[str], int]]:
    """A guarded process that signs for as many seconds as it reads, and its guardian."""
    argv = [sys.executable, "-c", GUARDED, str(limit_s), str(stopped_s)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as found:
        try:
            ask(found, "0.1")
            (guardian,) = children(found.pid)
            yield found, guardian
        finally:
            found.kill()


def ask(one: subprocess.Popen[str], line: str) -> None:
    assert one.stdin is not None
    one.stdin.write(f"{line}\n")
    one.stdin.flush()
    assert one.stdout is not None
    one.stdout.readline()


def children(pid: int) -> list[int]:
    found = [listed.read_text().split() for listed in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for each in found for child in each]


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("cause", ["stopped", "interpreter", "silent"])
async def test_process_without_a_sign_of_life_is_ended(cause: str) -> None:
    with process() as (one, guardian):
        if cause == "stopped":
            one.send_signal(signal.SIGSTOP)
        if cause == "interpreter":
            assert one.stdin is not None
            one.stdin.write("interpreter\n")
            one.stdin.flush()
        assert one.wait(30) == -signal.SIGKILL
        assert one.stderr is not None
        assert "no sign of life for 1 s" in one.stderr.read()
        await eventually(lambda: is_gone(guardian), 30)


async def test_stopped_process_is_ended_earlier_than_a_silent_one() -> None:
    """What it holds stays held while it is stopped; a call that keeps the interpreter may yet return."""
    with process(60.0, stopped_s=1.0) as (one, _):
        assert one.stdin is not None
        one.stdin.write("interpreter\n")
        one.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            one.wait(2.0)
        one.send_signal(signal.SIGSTOP)
        assert one.wait(30) == -signal.SIGKILL
        assert one.stderr is not None
        assert "it is stopped, and gave no sign of life for 1 s" in one.stderr.read()


def test_process_that_signs_lives_as_long_as_it_wants() -> None:
    with process() as (one, _):
        ask(one, "2.0")
        assert one.poll() is None


def test_container_that_was_paused_goes_on() -> None:
    """Both are stopped for longer than the limit, then both continue."""
    with process() as (one, guardian):
        one.send_signal(signal.SIGSTOP)
        os.kill(guardian, signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):
            one.wait(1.5)
        os.kill(guardian, signal.SIGCONT)
        with pytest.raises(subprocess.TimeoutExpired):
            one.wait(0.3)  # the guardian looks some times before the other has its turn
        one.send_signal(signal.SIGCONT)
        ask(one, "1.5")
        assert one.poll() is None


async def test_guardian_ends_with_its_process_also_where_a_child_outlives_that() -> None:
    with process(60.0) as (one, guardian):
        ask(one, "fork")
        orphans = [child for child in children(one.pid) if child != guardian]
        one.kill()
        one.wait()
        try:
            await eventually(lambda: is_gone(guardian), 30)
        finally:
            for orphan in orphans:
                os.kill(orphan, signal.SIGKILL)
    assert orphans


def test_guardian_leaves_no_process_behind() -> None:
    before = set(children(os.getpid()))
    with guarded(60.0, stopped_s=60.0) as sign:
        sign()
        assert len(set(children(os.getpid())) - before) == 1
    assert set(children(os.getpid())) <= before
