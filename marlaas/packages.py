"""Packages with environments: created by `marlaas envs new`, found in a folder, and built into the wheel that is uploaded."""

import importlib.util
import keyword
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from common.client_api.errors import ClientError
from common.errors import Reject
from common.messages import MAX_PACKAGE_BYTES

ENTRY_POINTS = "marlaas.environments"
NAME_PATTERN = re.compile(r"^[a-z][a-z0-9_]*$")
BUILD = ("-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
NOT_SOURCES = (".git", ".venv", "build", "dist", "*.egg-info", "__pycache__")
BUILD_TIMEOUT_S = 300.0


def write_package(name: str, folder: Path) -> list[Path]:
    """Write the package `name` into `folder`; returns the files.

    Raises: Reject if the name cannot be a module's, or the folder is not empty or not writable.
    """
    if not NAME_PATTERN.match(name):
        raise Reject(f"'{name}' cannot be the name of a Python package: use small letters, digits and underscores, a letter first")
    if keyword.iskeyword(name) or importlib.util.find_spec(name) is not None:
        raise Reject(f"'{name}' is a name of Python, or of a package that is installed here; choose another")
    try:
        if folder.exists() and any(folder.iterdir()):
            raise Reject(f"{folder} is not empty; name another folder with --to")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Reject(f"cannot write the package to {folder}: {error.strerror}; name another folder with --to") from None
    written: list[Path] = []
    for path, text in FILES.items():
        file = folder / path.replace("NAME", name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("NAME", name).replace("CLASS", class_name(name)).replace("TASK", name.replace("_", "-")))
        written.append(file)
    return written


def registered(name: str, folder: Path) -> str | None:
    """Entry point `name` of the package in `folder`, such as `my_env.environment:MyEnv`; None if there is none."""
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        return str(project["entry-points"][ENTRY_POINTS][name])
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError):
        return None


def class_name(name: str) -> str:
    """`number_game` → `NumberGame`."""
    return "".join(part.capitalize() for part in name.split("_"))


PYPROJECT = """\
[build-system]
requires = ["setuptools>=78"]
build-backend = "setuptools.build_meta"

[project]
name = "TASK"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["marlaas"]

[project.entry-points."marlaas.environments"]
NAME = "NAME.environment:CLASS"

[tool.setuptools]
packages = ["NAME"]

[tool.pytest.ini_options]
asyncio_mode = "auto"
asyncio_default_fixture_loop_scope = "function"
"""

ENVIRONMENT = '''\
"""CLASS: the policy must guess a number; each wrong guess is answered with a hint."""

import random
from typing import TypedDict

from env_svc.contract import ChatMessage, Continue, Environment, Finish, Opening, Reply, Turn, WrongOptions


class State(TypedDict):
    """What belongs to one episode. It travels with every turn through MessagePack."""

    number: int
    guesses: int


class CLASS(Environment[State]):
    """Options of a task are the arguments of the constructor."""

    components = ("guesses",)

    def __init__(self, highest: int = 20) -> None:
        if highest < 1:
            raise WrongOptions(f"highest is {highest}, expected 1 or more")
        self._highest = highest

    async def open(self, index: int, seed: int) -> Opening[State]:
        number = random.Random(f"{seed}:{index}").randint(1, self._highest)
        question = f"I think of a number from 1 to {self._highest}. Your guess? Answer with a number only."
        return Opening([ChatMessage(role="user", content=question)], State(number=number, guesses=0))

    async def step(self, state: State, reply: Reply) -> Turn[State]:
        guess, guesses = reply.text.strip(), state["guesses"] + 1
        if guess == str(state["number"]):
            return Finish(1.0 / guesses, {"guesses": float(guesses)})
        if not guess.isdecimal():
            return Finish(0.0, {"guesses": float(guesses)})
        hint = "Higher." if int(guess[:9]) < state["number"] else "Lower."
        return Continue([ChatMessage(role="user", content=hint)], State(number=state["number"], guesses=guesses))

    async def gold(self, state: State) -> str:
        return str(state["number"])
'''

TEST = '''\
"""Named by behaviour: what the policy says, and what it gets."""

from env_svc.contract import Continue, Finish, Reply
from NAME.environment import CLASS


async def test_right_guess_earns_more_the_earlier_it_comes() -> None:
    environment = CLASS(highest=9)
    opening = await environment.open(0, seed=1)
    assert await environment.step(opening.state, Reply(await environment.gold(opening.state))) == Finish(1.0, {"guesses": 1.0})
    turn = await environment.step(opening.state, Reply("0"))
    assert isinstance(turn, Continue)
    assert turn.messages[0].content == "Higher."
    assert await environment.step(turn.state, Reply(await environment.gold(turn.state))) == Finish(0.5, {"guesses": 2.0})


async def test_anything_but_a_number_ends_the_episode() -> None:
    environment = CLASS()
    opening = await environment.open(0, seed=1)
    assert await environment.step(opening.state, Reply("seven?")) == Finish(0.0, {"guesses": 1.0})
'''

TASK = """\
name = "TASK"
tenant = "acme"
pool = "tiny"
steps = 20

[environment]
name = "NAME"
options = { highest = 20 }

[sampling]
max_tokens = 8

[limits]
max_turns = 6
"""

README = """\
# NAME

An environment for MARLaaS. Change `NAME/environment.py`, then play it:

    marlaas envs check NAME
    python -m pytest                     # needs pytest and pytest-asyncio

It is found here without being installed. To train on it, install it where env_svc runs, and restart that:

    pip install -e .
    marlaas submit task.toml
"""

FILES = {
    "pyproject.toml": PYPROJECT,
    "README.md": README,
    "task.toml": TASK,
    "NAME/__init__.py": '"""An environment for MARLaaS."""\n',
    "NAME/environment.py": ENVIRONMENT,
    "tests/test_NAME.py": TEST,
}


def read_wheel(path: Path) -> bytes:
    """Bytes of the wheel at `path`; a folder with a pyproject.toml is built with locally installed packages, without network access.

    Raises: ClientError, with the reason.
    """
    if path.is_dir():
        if not (path / "pyproject.toml").is_file():
            raise ClientError(f"{path} has no pyproject.toml; give a project's folder, or a wheel")
        return _built(path)
    if path.suffix != ".whl":
        raise ClientError(f"{path} is neither a folder nor a wheel (.whl)")
    try:
        if path.stat().st_size > MAX_PACKAGE_BYTES:
            raise ClientError(f"{path} has {path.stat().st_size} bytes; a package has at most {MAX_PACKAGE_BYTES}")
        return path.read_bytes()
    except OSError as error:
        raise ClientError(f"cannot read {path}: {error.strerror}") from None


def _built(project: Path) -> bytes:
    with tempfile.TemporaryDirectory(prefix="marlaas-wheel-") as folder:
        copy = Path(folder) / "project"  # a build writes into the folder that it builds
        command = [sys.executable, *BUILD, "--wheel-dir", folder, str(copy)]
        try:
            shutil.copytree(project, copy, symlinks=True, ignore=shutil.ignore_patterns(*NOT_SOURCES))
            done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise ClientError(f"{project} was not built within {BUILD_TIMEOUT_S:.0f} s") from None
        except (OSError, shutil.Error) as error:
            raise ClientError(f"{project} cannot be copied: {error}") from None
        wheels = sorted(Path(folder).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
            raise ClientError(f"{project} cannot be built: {lines[-1] if lines else 'no wheel was written'}")
        return read_wheel(wheels[0])
