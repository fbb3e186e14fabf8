"""The wheel, without the checkout: the client with its base requirements, and the whole stack with `[all-cpu]`, from any folder."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.support.paths import ROOT

TASK = """
name = "letters"
tenant = "acme"
pool = "tiny"
steps = 2
environment = { name = "reasoning_gym:letter_counting", options = { min_words = 1, max_words = 2 } }
algorithm = { group_size = 4, groups_per_step = 2 }
lora = { rank = 4, alpha = 8 }
sampling = { max_tokens = 16 }
"""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)], check=True, capture_output=True)
    [made] = folder.glob("marlaas-*.whl")
    return made


def environment(folder: Path, *install: str, beside: str = "") -> Path:
    """The folder of the programs of a new virtual environment. `beside`: another's packages, which it also finds."""
    venv.create(folder, with_pip=True)
    if beside:
        packages = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
        (Path(packages) / "beside.pth").write_text(f"{beside}\n")
    subprocess.run([str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *install], check=True)
    return folder / "bin"


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("base"), str(wheel))


@pytest.mark.timeout(900)
def test_base_wheel_submits_watches_and_pulls_from_a_stack_that_runs_without_the_checkout(wheel: Path, base: Path, tmp_path: Path) -> None:
    # all-cpu's packages are installed already; marlaas itself must come from the wheel, not from the checkout.
    stack = environment(tmp_path / "stack", "--no-deps", str(wheel), beside=sysconfig.get_path("purelib"))
    (stack / "nats-server").symlink_to(Path(sysconfig.get_path("scripts")) / "nats-server")
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "task.toml").write_text(TASK)

    def run(bin: Path, *arguments: str) -> str:
        bare = {name: value for name, value in os.environ.items() if not name.startswith(("MARLAAS_", "PYTHONPATH"))}
        found = subprocess.run([str(bin / "marlaas"), *arguments], cwd=folder, env=bare, capture_output=True, text=True, timeout=600)
        assert found.returncode == 0, f"{arguments}: {found.stderr}{found.stdout}"
        return found.stdout

    where = subprocess.run(
        [str(stack / "python"), "-c", "import marlaas; print(marlaas.__file__)"], cwd=folder, capture_output=True, text=True
    )
    assert where.stdout.startswith(str(tmp_path))
    assert "submit" in run(base, "--help")
    run(stack, "up", "--data", "data")
    try:
        task = run(base, "submit", "task.toml", "--data", "data").split()[-1]
        assert "finished" in run(base, "watch", task, "--data", "data")
        run(base, "pull", task, "--to", "adapter", "--data", "data")
        assert (folder / "adapter" / "adapter_model.safetensors").stat().st_size > 1000
        assert task in run(base, "ps", "--data", "data")
    finally:
        run(stack, "down", "--data", "data")


def test_base_wheel_says_what_the_stack_needs(base: Path, tmp_path: Path) -> None:
    found = subprocess.run([str(base / "marlaas"), "up"], cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 1
    assert "pip install 'marlaas[all-cpu]'" in found.stderr
    assert "Traceback" not in found.stderr
