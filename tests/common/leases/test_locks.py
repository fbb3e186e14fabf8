"""Locks of an accelerator: what a process holds is free when it has died, with all that it forked, and not before."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from common.errors import Fatal
from common.leases.locks import Locks, holders

HOLDER = """
import os, signal, sys, time
from pathlib import Path
from common.leases.locks import Locks

locks = Locks(Path(sys.argv[1]), "rollout-one")
assert locks.take_compute() and locks.reserve(70, 100) is None
child = os.fork() if sys.argv[2] == "forks" else 0
if sys.argv[2] == "forks" and child == 0:
    signal.pause()
if sys.argv[2] == "spawns":
    import subprocess
    child = subprocess.Popen(["sleep", "1000"], pass_fds=locks.descriptors).pid
print(child, flush=True)
signal.pause()
"""


@contextmanager
def holder(folder: Path, kind: str) -> Generator[tuple[subprocess.Popen[str], int]]:
    """A process that holds everything, and the child that it has made; 0 without one."""
    command = [sys.executable, "-c", HOLDER, str(folder), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            yield process, child
        finally:
            process.kill()
            if child:
                kill(child)


def kill(pid: int) -> None:
    """Kill a child of a process that has died, and wait until it has gone."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    os.kill(pid, signal.SIGKILL)
    select.select([watched], [], [], 60)
    os.close(watched)


def test_compute_lock_has_one_holder(tmp_path: Path) -> None:
    one, two = Locks(tmp_path, "rollout-one"), Locks(tmp_path, "rollout-two")
    assert one.take_compute() and one.take_compute()
    assert not two.take_compute() and holders(tmp_path).computing
    one.release_compute()
    assert two.take_compute() and not one.take_compute()


def test_bytes_of_all_stay_within_the_budget(tmp_path: Path) -> None:
    one, two = Locks(tmp_path, "rollout-one"), Locks(tmp_path, "rollout-two")
    assert one.take_compute() and one.reserve(70, 100) is None
    assert holders(tmp_path).memory == {"rollout-one": 70}
    one.release_compute()
    assert two.take_compute()
    assert two.reserve(40, 100) == "40 bytes are needed on the device, of 100; held by rollout-one 70"
    assert not two.is_entered and holders(tmp_path).memory == {"rollout-one": 70}
    assert two.reserve(30, 100) is None
    one.release_memory()
    assert two.reserve(100, 100) is None, "its own old entry does not count"
    assert holders(tmp_path).memory == {"rollout-two": 100}


@pytest.mark.parametrize("kind", ["forks", "spawns"])
def test_locks_outlive_their_process_in_what_it_has_forked_and_no_longer(tmp_path: Path, kind: str) -> None:
    """An engine that has lost its parent still has the memory, and may still compute."""
    mine = Locks(tmp_path, "rollout-two")
    with holder(tmp_path, kind) as (process, child):
        process.kill()
        process.wait()
        assert holders(tmp_path).memory == {"rollout-one": 70} and not mine.take_compute()
        again = Locks(tmp_path, "rollout-one")
        kill(child)
        assert holders(tmp_path).memory == {} and again.take_compute() and again.reserve(100, 100) is None


def test_killed_process_frees_its_locks(tmp_path: Path) -> None:
    mine = Locks(tmp_path, "rollout-two")
    with holder(tmp_path, "alone") as (process, _):
        assert not mine.take_compute()
        process.kill()
        process.wait()
        assert mine.take_compute() and mine.reserve(100, 100) is None


def test_restarted_executor_waits_for_the_memory_of_its_predecessor(tmp_path: Path) -> None:
    with holder(tmp_path, "forks") as (_, child):
        again = Locks(tmp_path, "rollout-one")
        os.kill(child, 0)
        again.computes = True  # as if compute.lock were free
        assert again.reserve(10, 1000) == "an earlier process of this executor still has memory on the device"


def test_entry_that_cannot_be_read_counts_as_everything(tmp_path: Path) -> None:
    one, two = Locks(tmp_path, "rollout-one"), Locks(tmp_path, "rollout-two")
    assert one.take_compute() and one.reserve(1, 100) is None
    (tmp_path / "rollout-one.memory").write_text("?")
    one.release_compute()
    assert two.take_compute()
    assert two.reserve(1, 100) == "the device memory of rollout-one is unknown"


def test_folder_that_cannot_be_written_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        Fatal, match=r"^MARLAAS_ACCELERATORS_DIR: .*/file/a cannot be used for locks \(Not a directory\); give a folder .*$"
    ):
        Locks(tmp_path / "file" / "a", "rollout-one")


def test_folder_that_is_read_only_is_refused_in_a_line() -> None:
    """In /proc nobody may make files, root included."""
    with pytest.raises(Fatal, match="MARLAAS_ACCELERATORS_DIR: /proc/accelerators/a cannot be used for locks"):
        Locks(Path("/proc/accelerators/a"), "rollout-one")


def test_lock_has_the_same_name_for_all_that_share_it_and_another_once_its_file_is_another(tmp_path: Path) -> None:
    one, two = Locks(tmp_path / "a", "rollout-one"), Locks(tmp_path / "a", "rollout-two")
    assert one.identity is not None and one.identity == two.identity
    assert Locks(tmp_path / "b", "rollout-one").identity != one.identity
    (tmp_path / "a" / "compute.lock").unlink()
    assert Locks(tmp_path / "a", "rollout-one").identity != one.identity
