"""A process that gives no sign of life is ended from outside, whatever keeps it from giving one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.resilience.guardian import LOOKS, guarded
from tests.support.waiting import eventually

GUARDED = """
import ctypes, os, sys, time
from common.resilience.guardian import guarded

with guarded(float(sys.argv[1]), stopped_s=float(sys.argv[2])) as sign:
    print(open(f"/proc/self/task/{os.getpid()}/children").read(), flush=True)
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


LASTING_S = 6.0
"""Limit of processes that are to live: any may stand still for seconds on a busy machine."""


@contextmanager
def process(limit_s: float = 1.0, stopped_s: float = 1.0) -> Generator[tuple[subprocess.Popen[str], int]]:
    """A guarded process that signs for as many seconds as it reads, and its guardian."""
    argv = [sys.executable, "-c", GUARDED, str(limit_s), str(stopped_s)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as found:
        try:
            assert found.stdout is not None
            yield found, int(found.stdout.readline())
        finally:
            found.kill()


@dataclass(frozen=True)
class Lasting:
    signs: subprocess.Popen[str]
    paused: subprocess.Popen[str]
    guardian: int
    """Of the one that is paused; it is paused, too."""
    began_s: float


@pytest.fixture(scope="module", autouse=True)
def lasting() -> Iterator[Lasting]:
    """A process that signs for longer than its limit, and one that is stopped with its guardian, while other tests run."""
    with process(LASTING_S, LASTING_S) as (signs, _), process(LASTING_S, LASTING_S) as (paused, guardian):
        tell(signs, str(LASTING_S + 1))
        tell(paused, "0.3")  # in which its guardian begins to count
        assert answer(paused) == "done\n"
        paused.send_signal(signal.SIGSTOP)
        os.kill(guardian, signal.SIGSTOP)
        yield Lasting(signs, paused, guardian, time.monotonic())
        with suppress(ProcessLookupError):
            os.kill(guardian, signal.SIGCONT)


def tell(one: subprocess.Popen[str], line: str) -> None:
    assert one.stdin is not None
    with suppress(BrokenPipeError):  # its guardian was faster
        one.stdin.write(f"{line}\n")
        one.stdin.flush()


def answer(one: subprocess.Popen[str]) -> str:
    """Empty once it is dead."""
    assert one.stdout is not None
    return one.stdout.readline()


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
            tell(one, "interpreter")
        assert one.wait(60) == -signal.SIGKILL
        assert one.stderr is not None
        assert "no sign of life for 1 s" in one.stderr.read()
        await eventually(lambda: is_gone(guardian), 60)


async def test_stopped_process_is_ended_earlier_than_a_silent_one() -> None:
    """What it holds stays held while it is stopped; a call that keeps the interpreter may yet return."""
    with process(60.0, stopped_s=1.0) as (one, _):
        tell(one, "interpreter")
        with pytest.raises(subprocess.TimeoutExpired):
            one.wait(2.0)
        one.send_signal(signal.SIGSTOP)
        assert one.wait(60) == -signal.SIGKILL
        assert one.stderr is not None
        assert "it is stopped, and gave no sign of life for 1 s" in one.stderr.read()


async def test_guardian_ends_with_its_process_also_where_a_child_outlives_that() -> None:
    with process(60.0) as (one, guardian):
        tell(one, "fork")
        assert answer(one) == "done\n"
        orphans = [child for child in children(one.pid) if child != guardian]
        one.kill()
        one.wait()
        try:
            await eventually(lambda: is_gone(guardian), 60)
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


def test_process_that_signs_lives_as_long_as_it_wants(lasting: Lasting) -> None:
    assert answer(lasting.signs) == "done\n"


def test_container_that_was_paused_goes_on(lasting: Lasting) -> None:
    """Both are stopped for longer than the limit, then both continue."""
    paused = lasting.paused
    time.sleep(max(0.0, lasting.began_s + LASTING_S + 1 - time.monotonic()))
    os.kill(lasting.guardian, signal.SIGCONT)
    with pytest.raises(subprocess.TimeoutExpired):
        paused.wait(2 * LASTING_S / LOOKS)  # the guardian looks some times before the other has its turn
    paused.send_signal(signal.SIGCONT)
    tell(paused, "0.1")
    assert answer(paused) == "done\n"
