"""Upgrade with running tasks: this version continues with the data folder of the previous one (docs/operations.md, Upgrade)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import eventually

BEFORE = "8a0faa5962f3efbe6b453ec8fd702e61c2f22f2e"
"""The newest commit before this version. Change it when a version is released."""
REPOSITORY = Path(__file__).parents[2]
STEPS = 60
"""Enough steps that a busy machine does not take them all before the upgrade."""
TASK = f"""
name = "letters"
tenant = "acme"
pool = "tiny"
steps = {STEPS}
environment = {{ name = "reasoning_gym:letter_counting", options = {{ min_words = 1, max_words = 2 }} }}
algorithm = {{ group_size = 4, groups_per_step = 2 }}
evaluation = {{ every = 5, prompts = 4 }}
lora = {{ rank = 4, alpha = 8 }}
sampling = {{ max_tokens = 16 }}
"""


class Version:
    """A source tree, run with the packages of the tests."""

    def __init__(self, source: Path, data: Path) -> None:
        self._source, self._data = source, data

    def run(self, *arguments: str) -> str:
        bare = {name: value for name, value in os.environ.items() if not name.startswith("MARLAAS_")}
        command = [sys.executable, "-c", "from marlaas.cli import main; main()", arguments[0], "--data", str(self._data), *arguments[1:]]
        env = {**bare, "PYTHONPATH": str(self._source)}
        found = subprocess.run(command, cwd=self._source, env=env, capture_output=True, text=True, timeout=400)
        assert found.returncode == 0, f"{arguments}: {found.stderr}{found.stdout}"
        return found.stdout

    def where(self) -> str:
        asked = [sys.executable, "-c", "import scheduler_svc; print(scheduler_svc.__file__)"]
        env = {**os.environ, "PYTHONPATH": str(self._source)}
        return subprocess.run(asked, cwd=self._source, env=env, capture_output=True, text=True, check=True).stdout

    def version(self) -> int:
        """The only task's version."""
        return int(self.run("psql", "-c", "SELECT 'version ' || version FROM tasks").rpartition("version ")[2].split()[0])


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_data_folder_of_the_previous_version_is_continued(tmp_path: Path) -> None:
    archive = subprocess.run(["git", "archive", BEFORE], cwd=REPOSITORY, capture_output=True)
    assert archive.returncode == 0, f"the history of the repository is needed: git fetch --unshallow ({archive.stderr.decode()})"
    (tmp_path / "before").mkdir()
    subprocess.run(["tar", "-x", "-C", str(tmp_path / "before")], input=archive.stdout, check=True)
    (tmp_path / "task.toml").write_text(TASK)
    old, new = Version(tmp_path / "before", tmp_path / "data"), Version(REPOSITORY, tmp_path / "data")
    assert old.where() != new.where()
    try:
        old.run("up")
        task = old.run("submit", str(tmp_path / "task.toml")).split()[-1]
        await eventually(lambda: old.version() >= 2)
        old.run("down")
        new.run("up")
        reached = new.version()
        assert 2 <= reached < STEPS, "it must still have steps to go"
        assert "finished" in new.run("watch", task)
        assert new.version() == STEPS
        new.run("doctor")  # exit status 0: it finds nothing
        new.run("pull", task, "--to", str(tmp_path / "adapter"))
        assert (tmp_path / "adapter" / "adapter_model.safetensors").exists()
    finally:
        new.run("down")
