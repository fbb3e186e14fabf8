"""Kills and cuts on a shared accelerator: what does not hold is complained of, and the recorder sees it from outside."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import psutil
import pytest

from bench.harness.measures import usage
from bench.harness.services import BenchError
from bench.plex.real import recorder
from bench.plex.real.faults.figures import complaints, summary
from bench.plex.real.faults.schedule import LOADS, POINTS, REPEATED, small, whole
from bench.plex.real.faults.stores import OLDER, Told, copied, put_back
from bench.plex.real.faults.tasks import ended_as
from bench.plex.real.recorder import COMPUTE, Executor, Recorder, Recording
from scheduler_svc.reconcile import Reconciliation, as_text
from tests.support.waiting import eventually

CORES = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
NEEDS_TWO_CORES = pytest.mark.skipif(CORES[0] == CORES[1], reason="one core is the accelerator, another is none")
PINNED = """
import os, threading, time
def burn():
    os.sched_setaffinity(0, {{{pinned}}})
    while time.thread_time() < 0.25: pass
    print(threading.get_native_id(), flush=True)
    time.sleep(1000)
os.sched_setaffinity(0, {{{other}}})
threading.Thread(target=burn).start()
"""
BURN = "import fcntl, sys\nfile = open(sys.argv[1], 'a')\nfcntl.flock(file, fcntl.LOCK_EX)\nwhile True: pass"
FAULT = {"kind": "kill lease_in_wake rollout", "in_use_after_s": 3.2, "wake_s": 0.5, "allowed_s": 15.5, "within": True}
WHY = {"cause": "accelerator", "sentence": "waits for its accelerator"}
POISON = {"kind": "poison", "attempts_s": 1.5, "later_s": 2.0, "pools": "its folder is gone", "why": WHY}
SUMS = {"tasks": 8, "steps": 24, "slices": 90, "held_ms": 1000, "booked_ms": 1000, "looks": 5000}
RUN = {"run": "kills-0", "faults": [FAULT, POISON], "held_by_several": 0, "computing_together": 0, "differing": [], **SUMS}


def test_run_in_which_all_holds_is_not_complained_of() -> None:
    assert complaints([RUN]) == []
    assert summary([RUN, RUN])["kinds"][FAULT["kind"]] == {"times": 2, "in_use_after_s": [3.2, 3.2], "wake_s": [0.5, 0.5], "within": 2}


@pytest.mark.parametrize(
    ("of_run", "of_fault", "of_poison", "complaint"),
    [
        ({"differing": ["small-0"]}, {}, {}, "small-0 has other adapters"),
        ({"held_by_several": 1}, {}, {}, "1 looks at several holders"),
        ({"computing_together": 2}, {}, {}, "2 windows in which several computed"),
        ({"booked_ms": 999}, {}, {}, "1000 ms were held, and 999 ms are booked"),
        ({}, {"within": False, "in_use_after_s": 15.6}, {}, "in use again after 15.6 s, allowed are 15.5 s"),
        ({}, {"hung_s": 33.0, "hung_allowed_s": 32.25}, {}, "hung for 33.0 s, allowed are 32.25 s"),
        ({}, {}, {"later_s": 5.0}, "the other pool's tasks took 5.0 s longer"),
        ({}, {}, {"why": {"cause": None}}, "nothing says why"),
        ({}, {}, {"pools": None}, "nothing says why"),
    ],
)
def test_what_does_not_hold_is_complained_of(
    of_run: dict[str, Any], of_fault: dict[str, Any], of_poison: dict[str, Any], complaint: str
) -> None:
    (found,) = complaints([RUN | of_run | {"faults": [FAULT | of_fault, POISON | of_poison]}])
    assert complaint in found


def test_each_point_is_reached_five_times_in_samplers_and_trainers_of_both_pools() -> None:
    kinds = [fault for run in whole() for fault in run.faults]
    for point, service in POINTS:
        assert sum(one.kind == f"kill {point} {service}" for one in kinds) == REPEATED
        assert sum(one.kind == f"hang {point} {service}" for one in kinds) == 1
    assert {load.base for load in LOADS} == {"small", "middle"}


@pytest.fixture
def burning(tmp_path: Path) -> Iterator[Callable[[str], psutil.Process]]:
    """Starts a process that takes the lock of that name, and computes as long as it lives."""
    running: list[Popen[bytes]] = []

    def start(lock: str) -> psutil.Process:
        running.append(Popen([sys.executable, "-c", BURN, str(tmp_path / lock)]))
        return psutil.Process(running[-1].pid)

    yield start
    for process in running:
        process.kill()
        process.wait()


async def looked(recording: Recording) -> None:
    there = len(recording.looks) + 60

    async def look() -> bool:
        return len(recording.looks) >= there

    await eventually(look)


@pytest.fixture(autouse=True)
def little_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of a core counts as computing: beside other tests a process gets no more."""
    monkeypatch.setattr(recorder, "COMPUTING", 0.1)


async def test_recorder_sees_two_compute_of_which_one_has_the_lock(tmp_path: Path, burning: Callable[[str], psutil.Process]) -> None:
    present = {"a": Executor(burning(COMPUTE)), "b": Executor(burning("b.other"))}
    with Recorder(lambda: present, tmp_path) as recording:
        await eventually(lambda: _several_compute(recording))
    assert recording.held_by_several() == 0


@NEEDS_TWO_CORES
async def test_what_runs_on_other_cores_does_not_count_and_a_start_on_the_accelerators_does(
    tmp_path: Path, burning: Callable[[str], psutil.Process]
) -> None:
    other, core = CORES
    holder, starting = burning(COMPUTE), burning("b.memory")
    holder.cpu_affinity([core])
    starting.cpu_affinity([other])
    present = {"a": Executor(holder), "b": Executor(starting, is_ready=False)}
    with Recorder(lambda: present, tmp_path, [core]) as recording:
        await eventually(lambda: _held_by(recording, "a"))
        await looked(recording)
        assert recording.computing_together() == []
        await eventually(lambda: recording.busy_s(0.0, time.time())["a"] > 0.1)
        assert recording.busy_s(0.0, time.time())["b"] == 0.0
        starting.cpu_affinity([core])
        await eventually(lambda: _several_compute(recording))


@NEEDS_TWO_CORES
def test_of_a_process_those_threads_count_that_may_run_on_the_cores() -> None:
    other, core = CORES
    script = PINNED.format(pinned=core, other=other)
    with Popen([sys.executable, "-c", script], stdout=PIPE, text=True) as running:
        assert running.stdout is not None
        pinned = int(running.stdout.readline())
        process = psutil.Process(running.pid)
        assert usage.cpu_s_on(process, {core}).keys() == {pinned}
        assert usage.cpu_s_on(process, {core})[pinned] >= 0.2
        assert usage.cpu_s_on(process, {other}).keys() == {running.pid}
        assert usage.cpu_s_on(process, {other, core}) == {usage.WHOLE: pytest.approx(usage.cpu_s(process), abs=0.2)}
        running.kill()
    assert usage.cpu_s_on(process, {core}) == {}


async def test_processor_time_of_a_killed_executor_goes_on_with_its_next_process(
    tmp_path: Path, burning: Callable[[str], psutil.Process]
) -> None:
    present: Mapping[str, Executor] = {"a": Executor(burning(COMPUTE))}
    with Recorder(lambda: present, tmp_path) as recording:
        await eventually(lambda: _held_by(recording, "a"))
        await looked(recording)
        present["a"].process.kill()
        before_s = recording.looks[-1].cpu_s["a"]
        await eventually(lambda: _held_by(recording, None))
        present = {"a": Executor(burning(COMPUTE))}
        await eventually(lambda: _held_by(recording, "a"))
        await looked(recording)
    spent = [one.cpu_s["a"] for one in recording.looks if "a" in one.cpu_s]
    assert spent == sorted(spent) and spent[-1] > before_s


async def _several_compute(recording: Recording) -> bool:
    return bool(recording.computing_together())


async def _held_by(recording: Recording, name: str | None) -> bool:
    return bool(recording.looks) and recording.looks[-1].holders == (frozenset() if name is None else frozenset({name}))


def test_what_a_reconciliation_prints_is_read() -> None:
    done = Reconciliation("NATS is older than PostgreSQL: it has the outbox up to 6, and 7 was published")
    done.voided |= {"small-0-ab": 3, "middle-1-cd": 2}
    done.paused["small-0-ab"] = "version 2 needs small-0-ab.v2.checkpoint-12, which is not in the blob store of NATS"
    done.unknown += ["middle-0-ef", "small-1-aa"]
    told = Told.of(as_text(done))
    assert told.reason.startswith(OLDER["nats"])
    assert (told.voided, told.paused, told.unknown) == (5, ("small-0-ab",), ("middle-0-ef", "small-1-aa"))
    with pytest.raises(BenchError, match="nothing was to be reconciled"):
        Told.of(as_text(None))


def test_task_that_a_restored_store_lost_has_ended_and_one_that_failed_is_an_error() -> None:
    assert ended_as("t", None) == "unknown"
    assert ended_as("t", ("paused", "its checkpoint is gone")) == ""
    assert [ended_as("t", (state, None)) for state in ("running", "finished", "cancelled")] == ["", "finished", "cancelled"]
    with pytest.raises(BenchError, match="task t failed: no memory"):
        ended_as("t", ("failed", "no memory"))


def test_each_store_is_restored_once_in_a_run_of_its_own() -> None:
    for runs in (whole(), small()):
        (run,) = [one for one in runs if one.name == "restored"]
        assert [one.kind for one in run.faults] == ["restored postgres", "restored nats"]


def test_copy_of_a_store_takes_its_place_as_it_was(tmp_path: Path) -> None:
    folder, copy = tmp_path / "postgres", tmp_path / "postgres.copy"
    (folder / "base").mkdir(parents=True)
    for name in ("base/1", "postmaster.pid"):
        (folder / name).write_text("old")
    os.utime(folder / "base/1", (1, 1))
    copied(folder, copy)
    (folder / "base/1").write_text("new")
    (folder / "base/2").write_text("new")
    put_back(folder, copy)
    assert [path.name for path in sorted(folder.rglob("*"))] == ["base", "1"]
    assert ((folder / "base/1").read_text(), (folder / "base/1").stat().st_mtime) == ("old", 1)
    assert list(tmp_path.iterdir()) == [folder]
