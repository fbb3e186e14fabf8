"""An engine's process that is spawned ends with its service, and has the accelerator's locks until it has ended."""

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from common.leases.locks import Locks, holders
from rollout_svc.engine.start import PR_SET_PDEATHSIG, Inherited, failure_file
from tests.support.paths import ROOT

SERVICE = """
import multiprocessing, os, signal, sys
from pathlib import Path
from common.leases.locks import Locks
from rollout_svc.engine.start import Inherited, failure_file
from tests.rollout.test_inherited import Orphaned, compute

if __name__ == "__main__":
    locks = Locks(Path(sys.argv[1]), "rollout-one")
    assert locks.take_compute() and locks.reserve(70, 100) is None
    with failure_file() as failure:
        inherited = Inherited(failure, locks.descriptors)
        before = [Orphaned(os.getpid())] if sys.argv[2] == "late" else []
        child = multiprocessing.get_context("spawn").Process(target=compute, args=(sys.argv[2], *before, inherited))
        child.start()
        print(child.pid, os.getpid(), flush=True)
        signal.pause()
"""
ENGINE_SERVICE = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__":
    from vllm.v1.executor.abstract import Executor
    from common.leases.locks import Locks
    from rollout_svc.engine.start import Inherited, failure_file
    from rollout_svc.engine.config import EngineSettings, engine_arguments
    from rollout_svc.engine.start import import_vllm, processes_of, spawned
    from tests.support.rollout.requests import POOL

    locks = Locks(Path(sys.argv[1]), "rollout-one")
    assert locks.take_compute() and locks.reserve(70, 100) is None
    settings = replace(EngineSettings.of(POOL, device="cpu", cores=(0,), sleeps=True), kv_cache_gib=0.125)
    import_vllm(settings)
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"  # as on a GPU
    config = engine_arguments(settings, cpu=True).create_engine_config()
    with failure_file() as failure:
        llm = spawned(config, Executor.get_class(config), Inherited(failure, locks.descriptors))
    (child,) = processes_of(llm)
    print(child.pid, os.getpid(), flush=True)
    signal.pause()
"""
WAIT_S = 30.0


class Orphaned:
    """What is unpickled once the service has died."""

    def __init__(self, service: int) -> None:
        self._service = service

    def __reduce__(self) -> tuple[object, ...]:
        return wait_for_death, (self._service,)


def wait_for_death(service: int) -> None:
    print("waits", flush=True)
    watched = os.pidfd_open(service)
    select.select([watched], [], [], WAIT_S)


def compute(kind: str, *_: object) -> None:
    """The child: waits for ever."""
    if kind == "outlives":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0)
    print("computes", flush=True)
    signal.pause()


@contextmanager
def service(folder: Path, kind: str, program: str = SERVICE) -> Generator[tuple[subprocess.Popen[str], int, int]]:
    """A service that holds everything, its child's process id, and a descriptor that is readable once the child has ended."""
    script = folder / "service.py"
    script.write_text(program)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, str(script), str(folder), kind], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline().split()[0])
        watched = os.pidfd_open(child)
        try:
            yield process, child, watched
        finally:
            process.kill()
            if not has_ended(watched, 0):
                os.kill(child, signal.SIGKILL)
            os.close(watched)


def has_ended(watched: int, wait_s: float = WAIT_S) -> bool:
    return bool(select.select([watched], [], [], wait_s)[0])


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def test_spawned_child_ends_with_its_service(tmp_path: Path) -> None:
    mine = Locks(tmp_path, "rollout-two")
    with service(tmp_path, "ends") as (process, _, watched):
        assert process.stdout is not None and process.stdout.readline() == "computes\n"
        assert not has_ended(watched, 0)
        kill(process)
        assert has_ended(watched)
        assert holders(tmp_path).memory == {} and mine.take_compute()


def test_locks_are_held_until_a_spawned_child_that_outlives_its_service_has_ended(tmp_path: Path) -> None:
    mine = Locks(tmp_path, "rollout-two")
    with service(tmp_path, "outlives") as (process, child, watched):
        assert process.stdout is not None and process.stdout.readline() == "computes\n"
        kill(process)
        assert not has_ended(watched, 0.1)
        assert holders(tmp_path).memory == {"rollout-one": 70} and not mine.take_compute()
        os.kill(child, signal.SIGKILL)
        assert has_ended(watched)
        assert holders(tmp_path).memory == {} and mine.take_compute()


def test_child_whose_service_died_while_it_started_does_not_begin(tmp_path: Path) -> None:
    mine = Locks(tmp_path, "rollout-two")
    with service(tmp_path, "late") as (process, _, watched):
        assert process.stdout is not None and process.stdout.readline() == "waits\n"
        assert holders(tmp_path).computing and not mine.take_compute()
        kill(process)
        assert has_ended(watched)
        assert mine.take_compute()
        assert process.stdout.read() == "", "it has computed nothing"


def test_copy_within_the_service_has_the_same_files() -> None:
    import copy

    with failure_file() as failure:
        inherited = copy.deepcopy(Inherited(failure, (failure,)))
        assert not inherited.missing_in(os.getpid())
    assert inherited.missing_in(os.getppid())


@pytest.mark.slow
def test_vllms_engine_that_is_spawned_has_the_locks_and_ends_with_its_service(tmp_path: Path) -> None:
    """What a GPU's engine is, but for its device."""
    mine = Locks(tmp_path, "rollout-two")
    with service(tmp_path, "engine", ENGINE_SERVICE) as (process, child, watched):
        shared = {each.resolve() for each in Path(f"/proc/{child}/fd").iterdir()}
        assert {tmp_path / "compute.lock", tmp_path / "rollout-one.memory"} <= shared
        assert not has_ended(watched, 0) and not mine.take_compute()
        kill(process)
        assert has_ended(watched)
        assert holders(tmp_path).memory == {} and mine.take_compute()
