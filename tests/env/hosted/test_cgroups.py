"""Control groups: found where the machine has them, with the limits of one sandbox."""

import os
import subprocess
from pathlib import Path

import pytest

from env_svc.hosted.cgroups import FAMILY, Cgroups, GroupLimits, find_cgroups

LIMITS = GroupLimits(memory_mib=128, max_processes=32, cores=1.5)


def test_one_tree_has_one_group_with_all_limits(tmp_path: Path) -> None:
    folder = tmp_path / FAMILY
    (folder / "7-0").mkdir(parents=True)
    (folder / "7-0" / "memory.swap.max").write_text("max")
    assert Cgroups(dict.fromkeys(("cpu", "memory", "pids"), folder)).make("7-0", LIMITS) == [folder / "7-0" / "cgroup.procs"]
    written = {file.name: file.read_text() for file in (folder / "7-0").iterdir()}
    assert written == {"cpu.max": "15000 10000", "memory.max": "134217728", "memory.swap.max": "0", "pids.max": "32"}


def test_tree_of_each_controller_has_a_group_in_each(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("cpu", "memory", "pids")}
    for folder in folders.values():
        folder.mkdir()
    files = Cgroups(folders).make("7-0", LIMITS)
    assert files == [tmp_path / name / "7-0" / "cgroup.procs" for name in ("cpu", "memory", "pids")]
    assert (tmp_path / "memory" / "7-0" / "memory.limit_in_bytes").read_text() == "134217728"
    assert (tmp_path / "pids" / "7-0" / "pids.max").read_text() == "32"
    assert (tmp_path / "cpu" / "7-0" / "cpu.cfs_quota_us").read_text() == "15000"


def test_groups_of_a_replica_that_runs_are_not_swept(tmp_path: Path) -> None:
    for name in (f"{os.getpid()}-0", "999999999-0"):
        (tmp_path / name).mkdir()
    Cgroups(dict.fromkeys(("cpu", "memory", "pids"), tmp_path)).sweep()
    assert [group.name for group in tmp_path.iterdir()] == [f"{os.getpid()}-0"]


def test_machine_that_lets_the_service_make_none_has_none(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("0::/\n")
    assert find_cgroups(None, tmp_path / "nothing", tmp_path / "own") is None
    assert find_cgroups(tmp_path / "not delegated") is None


@pytest.mark.skipif(find_cgroups(None) is None, reason="this machine lets the tests make no control groups")
def test_processes_of_a_group_are_bounded_together() -> None:
    found = find_cgroups(None)
    assert found is not None
    name = f"{os.getpid()}-test"
    enter = " && ".join(f"echo $$ > {file}" for file in found.make(name, LIMITS))
    try:
        hungry = "import os\nfor _ in range(4):\n    os.fork()\nkept = bytearray(100_000_000)\nprint('had it')"
        ran = subprocess.run(["sh", "-c", f'{enter} && exec python3 -c "{hungry}"'], capture_output=True, timeout=60, text=True)
        assert ran.stdout.count("had it") < 16
    finally:
        found.remove(name)
    assert find_cgroups(None) is not None, "what is left is swept"
