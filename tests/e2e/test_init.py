"""A stack that was made without keys gets them: a task that was running continues, and nothing is lost."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from common.access.credentials import read_credentials
from common.resilience.crashpoints import OPERATORS
from marlaas.client import Client
from marlaas.stack import control
from marlaas.stack.state_files import is_locked, running_stack
from tests.conftest import eventually
from tests.marlaas.command import marlaas
from tests.marlaas.tenancy.commands import ARMED

REPOSITORY = Path(__file__).parents[2]
STEPS = 60
"""Enough steps that a busy machine does not take them all before the keys are made."""
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
POINTS = [point for point in OPERATORS if point != "before_revoke"]


class Stack:
    """A stack, as the command line drives it."""

    def __init__(self, data: Path) -> None:
        self._data = data

    def run(self, *arguments: str) -> str:
        bare = {name: value for name, value in os.environ.items() if not name.startswith("MARLAAS_")}
        command = [sys.executable, "-c", "from marlaas.cli import main; main()", arguments[0], "--data", str(self._data), *arguments[1:]]
        found = subprocess.run(command, cwd=REPOSITORY, env=bare, capture_output=True, text=True, timeout=400)
        assert found.returncode == 0, f"{arguments}: {found.stderr}{found.stdout}"
        return found.stdout

    def version(self) -> int:
        """The only task's version."""
        return int(self.run("psql", "-c", "SELECT 'version ' || version FROM tasks").rpartition("version ")[2].split()[0])


def init(data: Path, *, crash: str = "") -> subprocess.CompletedProcess[str]:
    """`crash`: point at which the command's process is killed."""
    argv = [sys.executable, "-c", ARMED.format(f"{crash}:1" if crash else ""), "init", "--from-existing", "--data", str(data)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=250, cwd=REPOSITORY)


@pytest.mark.acceptance
@pytest.mark.timeout(900)
async def test_running_task_of_a_stack_without_keys_continues_with_them(data: Path, tmp_path: Path) -> None:
    (tmp_path / "task.toml").write_text(TASK)
    stack = Stack(data)
    assert "key:" not in stack.run("up", "--open")
    task = stack.run("submit", str(tmp_path / "task.toml")).split()[-1]
    await eventually(lambda: stack.version() >= 2)
    running = init(data)
    assert (running.returncode, running.stderr) == (1, f"marlaas: a stack runs on {data}; next: marlaas down\n")
    stack.run("down")

    for point in POINTS:
        assert init(data, crash=point).returncode == -signal.SIGKILL, point
        await eventually(lambda: not is_locked(data))
    done = init(data)
    assert (done.returncode, done.stderr) == (0, "")
    repeated = init(data)
    assert (repeated.returncode, repeated.stdout) == (0, done.stdout)
    assert "tenants with an account: acme;" in done.stdout

    said = stack.run("up")
    assert "key:" in said and "HTTP: http://127.0.0.1:" in said
    assert 2 <= stack.version() < STEPS, "it must still have steps to go"
    [key] = [Path(found) for found in re.findall(r"every tenant: (\S+)", done.stdout)]
    assert (read_credentials(key).role, key.stat().st_mode & 0o777) == ("admin", 0o600)
    create = ("keys", "create", "acme", "laptop", "--to", "acme.creds", "--data", str(data))
    assert (await asyncio.to_thread(marlaas, *create, cwd=tmp_path)).returncode == 0
    url = running_stack(data).nats_url
    async with Client.connect(url, creds=tmp_path / "acme.creds") as tenant, Client.connect(url, creds=key) as operator:
        assert (await tenant.wait(task)).state == "finished"
        assert [one.task for one in await operator.tasks()] == [task]
    assert stack.version() == STEPS
    stack.run("pull", task, "--to", str(tmp_path / "adapter"))
    stack.run("doctor")  # exit status 0: it finds nothing
    control.stop(data)
