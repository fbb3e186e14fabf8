"""The command line: its output and exit status.

Four tests start real processes, which imports, the exit status and signals need. The others run in this one.
"""

import asyncio
import re
import signal
import subprocess
import sys
import tomllib
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from common.bus import Bus
from marlaas.client import Client
from marlaas.task_file import read_task
from tests.marlaas.tasks import SPEC, STEPS
from tests.support.marlaas.command import MARLAAS, complaint, marlaas
from tests.support.paths import EXAMPLES
from tests.support.scheduler.stages import World

TASK = """\
name = "gcd"
tenant = "acme"
pool = "tiny"
steps = 3
[environment]
name = "toy"
"""


def process(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([MARLAAS, *arguments], cwd=cwd, capture_output=True, text=True, timeout=250)


@pytest.fixture
def task_file(tmp_path: Path) -> Path:
    path = tmp_path / "task.toml"
    path.write_text(TASK)
    return path


def test_help_is_answered_without_importing_what_takes_long(tmp_path: Path) -> None:
    helps = "from marlaas.cli import run\nfor command in [], ['up'], ['demo'], ['submit']: assert run([*command, '--help']) == 0"
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", helps], cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0
    assert [done.stdout.count(f"Usage: marlaas{command} [") for command in ("", " up", " demo", " submit")] == [1, 1, 1, 1]
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "marlaas" in imported
    assert not imported & {"torch", "transformers", "peft", "vllm", "numpy", "nats", "sqlalchemy", "psycopg", "docker", "matplotlib"}


def test_usage_error_and_help_are_ends_of_the_process(tmp_path: Path) -> None:
    assert (process("--help", cwd=tmp_path).returncode, process("watch", "--nonsense", cwd=tmp_path).returncode) == (0, 2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signal_ends_what_waits(number: signal.Signals, bus: Bus, address: str, scheduler: World, tmp_path: Path) -> None:
    async with Client.connect(address) as client:
        await client.submit(SPEC | {"name": "slow"}, "slow")
    watch = ("env", "--default-signal=INT", MARLAAS, "watch", "slow", "--url", address)  # a background job of a shell ignores it
    following = await asyncio.create_subprocess_exec(*watch, cwd=tmp_path, stdout=PIPE, stderr=PIPE)
    assert following.stdout is not None
    assert b"accepted" in await following.stdout.readline()
    following.send_signal(number)
    _, complaints = await following.communicate()
    assert (following.returncode, complaints) == (130, b"")


@pytest.mark.parametrize("command", [["ps"], ["status"], ["watch"], ["show", "x"], ["cancel", "x"], ["pull", "x"], ["psql"], ["doctor"]])
def test_without_a_stack_the_error_says_how_to_start_one(command: list[str], tmp_path: Path) -> None:
    assert complaint(marlaas(*command, cwd=tmp_path)).startswith("marlaas: no stack runs on .marlaas; start one with `marlaas up`")


def test_down_without_a_stack_is_harmless(tmp_path: Path) -> None:
    done = marlaas("down", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "nothing runs on .marlaas\n")


def test_unknown_field_is_named_with_its_nearest(task_file: Path) -> None:
    task_file.write_text(TASK + "[algorithm]\ngroup_sise = 4\n")
    text = complaint(process("submit", "task.toml", cwd=task_file.parent))
    assert text == "marlaas: task.toml: algorithm.group_sise: no such field; did you mean 'group_size'?\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [(None, "there is no task file task.toml"), ("name = ", "task.toml is not TOML"), ("name = 'x'", "tenant: required, but not given")],
)
def test_unusable_task_file_is_explained(content: str | None, expected: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "task.toml").write_text(content)
    assert expected in complaint(marlaas("submit", "task.toml", cwd=tmp_path))


def test_absent_pools_file_is_named(tmp_path: Path) -> None:
    assert "pools file nowhere.toml does not exist" in complaint(marlaas("up", "--pools", "nowhere.toml", cwd=tmp_path))


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["up", "--data", "file"], "file cannot be a stack's directory: Not a directory; name another with --data"),
        (["up", "--data", "file/below"], "file/below cannot be a stack's directory: Not a directory; name another with --data"),
        (["down", "--data", "file"], "file cannot be a stack's directory: Not a directory; name another with --data"),
        (["pools", "--pools", "."], "pools file . cannot be read: Is a directory; correct it, or set MARLAAS_POOLS_FILE"),
        (["pools", "--pools", "file"], "pools file file is not UTF-8 (invalid start byte at byte 0); save it as UTF-8"),
        (["envs", "new", "guess", "--to", "file"], "cannot write the package to file: Not a directory; name another folder with --to"),
        (["ps", "--url", "nats://user:secret@host:abc"], "'nats://host:abc' is no address of NATS; one looks like nats://host:4222"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_used_is_one_line_with_the_way_out(command: list[str], expected: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xff\xfe")
    (tmp_path / "pools.toml").write_text("")
    text = complaint(marlaas(*command, cwd=tmp_path))
    assert text.startswith("marlaas: ")
    assert expected in text
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [["submit", "task.toml", "--id", "My Task"], ["watch", "fine", "My Task"], ["failures", "My Task"], ["cancel", "My Task"]],
    ids=" ".join,
)
def test_id_that_no_task_can_have_is_refused_before_any_request(command: list[str], task_file: Path) -> None:
    text = complaint(marlaas(*command, cwd=task_file.parent))  # where no stack runs, nor is any named
    assert text.startswith("marlaas: 'My Task' cannot be the id of a task: small letters, digits and hyphens, 63 at most")
    assert text.count("\n") == 1


def test_environments_are_those_installed_here_where_no_stack_runs(tmp_path: Path) -> None:
    done = process("envs", cwd=tmp_path)
    assert done.returncode == 0
    assert {"calculator", "code", "math", "reasoning_gym:gcd"} <= set(done.stdout.splitlines())
    assert "no stack runs on .marlaas; installed here" in done.stderr


@pytest.mark.slow  # by design it tries for ten seconds
def test_unreachable_nats_is_named(task_file: Path) -> None:
    text = complaint(marlaas("submit", "task.toml", "--url", "nats://127.0.0.1:1", cwd=task_file.parent))
    assert "NATS does not answer at nats://127.0.0.1:1" in text


async def test_task_is_submitted_watched_listed_and_pulled(address: str, bus: Bus, scheduler: World, task_file: Path) -> None:
    async def run(*arguments: str) -> str:
        done = await asyncio.to_thread(marlaas, *arguments, "--url", address, cwd=task_file.parent)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert await run("submit", "task.toml", "--id", "mine-1") == "tenant 'acme' is new: this task has made it\naccepted: mine-1\n"
    watched = (await run("watch", "mine-1")).splitlines()
    assert [line.split()[2] for line in watched] == ["accepted", *["step"] * STEPS, "finished"]
    assert re.search(r"mine-1 step 3 reward \d\.\d{3} staleness \d\.\d tokens \d+ loss 0\.1000", watched[3]), watched[3]
    assert "mine-1" in await run("ps")
    assert "version 3 of mine-1, rank 8" in await run("pull", "mine-1")
    assert (task_file.parent / "mine-1.v3" / "content").exists()


async def test_rejection_is_printed_line_by_line(address: str, scheduler: World, task_file: Path) -> None:
    task_file.write_text(TASK.replace('"tiny"', '"huge"'))
    done = await asyncio.to_thread(marlaas, "submit", "task.toml", "--url", address, cwd=task_file.parent)
    assert complaint(done).splitlines()[1:] == ["  pool: no pool 'huge' here; offered: tiny"]


OTHER_FILES = {*EXAMPLES.rglob("pools.toml"), *EXAMPLES.rglob("pyproject.toml")}


@pytest.mark.parametrize("path", sorted(set(EXAMPLES.rglob("*.toml")) - OTHER_FILES), ids=lambda path: path.stem)
def test_example_is_a_task_that_the_offered_pools_take(path: Path) -> None:
    from common.pools import objections, read_pools

    own = path.with_name("pools.toml")
    assert objections(read_task(path), read_pools(own if own.exists() else EXAMPLES.parent / "pools.toml")) == []
    assert "name" in tomllib.loads(path.read_text())
