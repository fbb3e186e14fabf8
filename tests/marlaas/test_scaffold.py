"""`marlaas envs new` and `marlaas envs check`: the written package works. The check execs another program, so it runs in a process."""

import os
import subprocess
import sys
from pathlib import Path

from common.spec import TaskSpec, parse_spec
from tests.support.marlaas.command import Done, marlaas
from tests.support.paths import ROOT

CODE = "from marlaas.cli import main; main()"


def new(folder: Path, *words: str) -> Done:
    return marlaas("envs", "new", *words, cwd=folder)


def check(folder: Path, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    words = ("envs", "check", *words)
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    return subprocess.run([sys.executable, "-c", CODE, *words], cwd=folder, capture_output=True, text=True, timeout=250, env=environment)


def test_written_package_passes_its_test_and_the_check(tmp_path: Path) -> None:
    made = new(tmp_path, "number_game")
    assert made.returncode == 0, made.stderr
    package = tmp_path / "number_game"
    assert (package / "number_game" / "environment.py").exists()
    checked = check(package, "number_game.environment:NumberGame", "--rows", "2", "--options", '{"highest": 5}')
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "from 1 to 5" in checked.stdout
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=package, capture_output=True, text=True, timeout=250,
        env=os.environ | {"PYTHONPATH": f"{package}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert "2 passed" in tests.stdout, tests.stdout


def test_package_is_checked_by_its_name_right_after_it_was_written(tmp_path: Path) -> None:
    made = new(tmp_path, "number_game")
    assert made.stdout.splitlines()[-1] == "next: cd number_game && marlaas envs check number_game"
    for folder in (tmp_path, tmp_path / "number_game"):
        checked = check(folder, "number_game", "--rows", "1")
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert "I think of a number from 1 to 20" in checked.stdout
    unknown = check(tmp_path, "number_gam", "--rows", "1")
    assert unknown.returncode == 2
    assert unknown.stderr.startswith("no environment 'number_gam'; known: calculator, code, compose, exact_words, math")
    assert unknown.stderr.endswith("a class that is not registered is named my_package.module:Class\n")


def test_installed_package_is_found_by_its_name(tmp_path: Path) -> None:
    new(tmp_path, "number_game")
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", str(site), "./number_game"]
    subprocess.run(pip, cwd=tmp_path, check=True, capture_output=True, timeout=250)
    checked = check(tmp_path, "number_game", "--rows", "2", PYTHONPATH=f"{ROOT}{os.pathsep}{site}")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_written_task_is_valid(tmp_path: Path) -> None:
    import tomllib

    new(tmp_path, "number_game")
    assert isinstance(parse_spec(tomllib.loads((tmp_path / "number_game" / "task.toml").read_text())), TaskSpec)


def test_wrong_name_and_full_folder_are_refused_in_one_line(tmp_path: Path) -> None:
    wrong = new(tmp_path, "Number-Game")
    assert wrong.returncode == 1
    assert "cannot be the name of a Python package" in wrong.stderr
    for taken in ("json", "class", "msgpack"):
        refused = new(tmp_path, taken)
        assert refused.stderr == f"marlaas: '{taken}' is a name of Python, or of a package that is installed here; choose another\n"
        assert not (tmp_path / taken).exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.py").touch()
    full = new(tmp_path, "number_game", "--to", "full")
    assert full.returncode == 1
    assert full.stderr == "marlaas: full is not empty; name another folder with --to\n"
    assert sorted(path.name for path in (tmp_path / "full").iterdir()) == ["mine.py"]
