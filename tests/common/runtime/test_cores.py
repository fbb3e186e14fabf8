"""Threads of a process leave cores that are a shared CPU, and stay on those of a shared GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

LEAVES = """
import os, sys, threading
from common.runtime.process import leave

def started():
    thread = threading.Thread(target=threading.Event().wait, daemon=True)
    thread.start()
    return thread.native_id

earlier = started()
left = leave(*([int(core) for core in cores.split(",")] for cores in sys.argv[1:]))
print(left, *(sorted(os.sched_getaffinity(thread)) for thread in (0, earlier, started())), sep="; ")
"""


def leaving(*choices: set[int]) -> str:
    command = [sys.executable, "-c", LEAVES, *(",".join(map(str, cores)) for cores in choices)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=250).stdout.strip()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="no other core")
def test_all_threads_leave_the_cores_and_those_that_start_later_begin_elsewhere() -> None:
    core = max(os.sched_getaffinity(0))
    others = sorted(os.sched_getaffinity(0) - {core})
    assert leaving({core}) == f"True; {others}; {others}; {others}"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="no other core")
def test_first_choice_that_leaves_it_other_cores_is_taken() -> None:
    cores = os.sched_getaffinity(0)
    first, second = sorted(cores)[:2]
    others = sorted(cores - {first})
    assert leaving(cores, {first}, {second}) == f"True; {others}; {others}; {others}"


def test_process_without_other_cores_stays() -> None:
    cores = sorted(os.sched_getaffinity(0))
    assert leaving(set(cores)) == f"False; {cores}; {cores}; {cores}"


EXECUTOR = """
import os, sys
from pathlib import Path
from common.leases import Identity, placed
from common.runtime.process import leave
from trainer_svc.__main__ import _cores_of_learner

core, place = int(sys.argv[1]), placed(Identity("a", "trainer", "tiny", "r"), Path("pools.toml"))
before = os.sched_getaffinity(0)
leave(*place.cores_to_leave([core]))
print(sorted(os.sched_getaffinity(0)), end="; ")
os.sched_setaffinity(0, before)
print(_cores_of_learner((core,), place), sorted(os.sched_getaffinity(0)), sep="; ")
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="no other core")
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_executor_leaves_the_cores_that_are_its_accelerator_and_stays_on_those_of_its_gpu(device: str, tmp_path: Path) -> None:
    """A GPU's engine is spawned by a thread whose cores it keeps; its trainer is on the cores as a whole."""
    cores = os.sched_getaffinity(0)
    core, another = max(cores), min(cores)
    (tmp_path / "m").mkdir()
    accelerator = f'[accelerator.a]\ndevice = "{device}"\ncores = "{core}"\nmemory_gib = 1\n'
    accelerator += f'[accelerator.b]\ndevice = "cpu"\ncores = "{another}"\nmemory_gib = 1\n'
    (tmp_path / "pools.toml").write_text(f'{accelerator}[tiny]\nmodel = "m"\non = "a"\n')
    command = [sys.executable, "-c", EXECUTOR, str(core)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250, cwd=tmp_path, env=environment).stdout.strip()
    others = sorted(cores - {core, another} or cores - {core})
    assert found == (f"{others}; {(core,)}; {others}" if device == "cpu" else f"{sorted(cores)}; (); [{core}]")
