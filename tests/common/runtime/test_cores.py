"""Threads of a process leave cores that are a shared accelerator."""

import os
import subprocess
import sys

import pytest

LEAVES = """
import os, sys, threading
from common.runtime.cores import leave

def started():
    thread = threading.Thread(target=threading.Event().wait, daemon=True)
    thread.start()
    return thread.native_id

earlier = started()
left = leave([int(core) for core in sys.argv[1].split(",")])
print(left, *(sorted(os.sched_getaffinity(thread)) for thread in (0, earlier, started())), sep="; ")
"""


def leaving(cores: set[int]) -> str:
    command = [sys.executable, "-c", LEAVES, ",".join(map(str, cores))]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="no other core")
def test_all_threads_leave_the_cores_and_those_that_start_later_begin_elsewhere() -> None:
    core = max(os.sched_getaffinity(0))
    others = sorted(os.sched_getaffinity(0) - {core})
    assert leaving({core}) == f"True; {others}; {others}; {others}"


def test_process_without_other_cores_stays() -> None:
    cores = sorted(os.sched_getaffinity(0))
    assert leaving(set(cores)) == f"False; {cores}; {cores}; {cores}"
