"""`env_svc.check`: what it says of environments that are fit to train on, and of those that are not."""

import io
import random
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout

import pytest

from env_svc.check import GOLD, main, play_row
from env_svc.contract import ChatMessage, Environment, Finish, Opening, Reply, Turn
from env_svc.registry import build
from tests.support.paths import ROOT


class Well(Environment[str]):
    """Says a word, wants it back."""

    async def open(self, index: int, seed: int) -> Opening[str]:
        word = random.Random(f"{seed}:{index}").choice(["tea", "oil", "ink"])
        return Opening([ChatMessage(role="user", content=f"Say {word}.")], state=word)

    async def step(self, state: str, reply: Reply) -> Turn[str]:
        return Finish(1.0 if reply.text == state else 0.0)

    async def gold(self, state: str) -> str:
        return state


class OtherEachTime(Well):
    async def open(self, index: int, seed: int) -> Opening[str]:
        return Opening([ChatMessage(role="user", content=f"Say {random.random()}.")], state="tea")


class OrderOfSets(Well):
    async def open(self, index: int, seed: int) -> Opening[str]:
        return Opening([ChatMessage(role="user", content=" ".join({f"word{number}" for number in range(20)}))], state="tea")


class WrongGold(Well):
    async def gold(self, state: str) -> str:
        return "water"


class Generous(Well):
    async def step(self, state: str, reply: Reply) -> Turn[str]:
        return Finish(1.0)


class Breakable(Well):
    async def step(self, state: str, reply: Reply) -> Turn[str]:
        return Finish(float(reply.text == state and bool(reply.text[0])) if reply.text else 1 / len(reply.text))


class LargeState(Well):
    async def open(self, index: int, seed: int) -> Opening[str]:
        return Opening([ChatMessage(role="user", content="?")], state="x" * 2**20)


class Killer(Well):
    async def step(self, state: str, reply: Reply) -> Turn[str]:
        import os

        os._exit(3)


def checked(name: str, *more: str) -> "subprocess.CompletedProcess[str]":
    """Run `check` in this process, with its exit status; the two that play the environment are processes all the same."""
    argv, status = ["check", name, "--rows", "3", *more], 0
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, argv
    try:
        with redirect_stdout(out), redirect_stderr(err), chdir(ROOT):
            main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    finally:
        sys.argv = before
    return subprocess.CompletedProcess(argv, status, out.getvalue(), err.getvalue())


def test_fit_environment_passes_and_its_trajectory_is_shown() -> None:
    argv = [sys.executable, "-m", "env_svc.check", "tests.env.check.test_check:Well", "--rows", "3"]
    ended = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, timeout=250)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "WRONG" not in ended.stdout
    assert "gold answers earn 1 to 1, and more than nonsense does" in ended.stdout
    assert "row 0, policy 'gold'\n  user: Say " in ended.stdout
    assert "  reward: 1\n" in ended.stdout


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("OtherEachTime", "WRONG the same seed gives something else in another process: row 0, policy 'gold': said"),
        ("OrderOfSets", "WRONG the same seed gives something else in another process"),
        ("WrongGold", "WRONG row 0: the gold answer earns 0, policy 'nonsense' 0"),
        ("Generous", "WRONG row 0: the gold answer earns 1, policy 'nonsense' 1"),
        (
            "Breakable",
            "WRONG row 0, policy 'nothing': environment 'tests.env.check.test_check:Breakable' failed on row 0: ZeroDivisionError",
        ),
        ("LargeState", "can travel with a turn"),
        ("Killer", "ended the process that played it (exit status 3)"),
    ],
)
def test_unfit_environment_is_found_out(name: str, problem: str) -> None:
    ended = checked(f"tests.env.check.test_check:{name}")
    assert ended.returncode == 1
    assert problem in ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("name", "more", "problem"),
    [
        ("tests.env.check.test_check:Wel", [], "module 'tests.env.check.test_check' has no 'Wel'"),
        ("tests.env.check.test_check:Well", ["--options", '{"size": 3}'], "has no option 'size'"),
        ("tests.env.check.test_check:Well", ["--options", "size=3"], "--options is not a JSON object"),
        ("tests.env.check.test_check:Well", ["--options", "[3]"], "--options is not a JSON object"),
    ],
)
def test_what_cannot_be_built_is_one_line(name: str, more: list[str], problem: str) -> None:
    ended = checked(name, *more)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert problem in ended.stderr


def test_mistake_in_a_constructor_is_shown_where_it_is_and_named_in_the_last_line() -> None:
    ended = checked("tests.env.toys:Unbuildable", "--options", '{"how": "raise"}')
    assert ended.returncode == 2
    assert "toys.py" in ended.stderr
    assert ended.stderr.splitlines()[-1] == "tests.env.toys:Unbuildable cannot be built: RuntimeError: the hub is unavailable"


async def test_script_plays_many_turns_and_ends_at_the_limit() -> None:
    environment = build("tests.env.toys:Lenient", {})
    episodes = {episode.policy: episode for episode in await play_row(environment, "toy", 0, 0, max_turns=2)}
    assert GOLD not in episodes
    assert (episodes["nonsense"].reward, len(episodes["nonsense"].states)) == (0.0, 1)
    assert [said.role for said in episodes["nonsense"].said] == ["user", "assistant"]
