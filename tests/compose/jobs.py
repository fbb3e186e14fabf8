"""Tasks of a deployment with containers, submitted by a plain NATS client."""

import ast
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.compose.deployment import POLL_S, SERVICES, Deployment
from tests.support.paths import ROOT

STEP_TIMEOUT_S = 240.0


class Job:
    """A task submitted with a plain NATS client, and what that client prints."""

    def __init__(self, deployment: Deployment, folder: Path, name: str, steps: int) -> None:
        self._deployment = deployment
        self.steps = steps
        text = (ROOT / "examples" / "letters.toml").read_text()
        task_file = folder / f"{name}.toml"
        task_file.write_text(text.replace('name = "letters"', f'name = "{name}"', 1).replace("steps = 30", f"steps = {steps}"))
        self._output = (folder / f"{name}.out").open("w+")
        argv = [sys.executable, str(ROOT / "examples" / "publish_job.py"), str(task_file), deployment.nats_url]
        argv += ["--creds", str(deployment.tenants_key(folder))]
        self._client = subprocess.Popen(argv, stdout=self._output, stderr=subprocess.STDOUT, cwd=folder)
        until(lambda: self.lines and self.lines[0].startswith("submitted "), 60, lambda: self.text)
        self.task = self.lines[0].removeprefix("submitted ")

    @property
    def text(self) -> str:
        return Path(self._output.name).read_text()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def version(self) -> int:
        """Steps taken, as the database has it."""
        rows = self._deployment.psql(f"SELECT version FROM task_status WHERE task = '{self.task}'")
        return int(rows[0][0]) if rows else 0

    @property
    def steps_seen(self) -> list[int]:
        """Versions of the steps that the client has printed."""
        return [ast.literal_eval(line.removeprefix("step "))["version"] for line in self.lines if line.startswith("step ")]

    def advance(self, by: int = 1) -> None:
        """Wait until that many more steps were taken."""
        aim = min(self.version + by, self.steps)
        until(lambda: self.version >= aim, STEP_TIMEOUT_S, lambda: self._deployment.logs(*SERVICES)[-8000:])

    def finish(self) -> None:
        self.advance(self.steps)
        assert self._client.wait(timeout=60) == 0, self.text
        assert self.lines[1].startswith("accepted ")
        assert self.lines[-1].startswith("finished ")

    def close(self) -> None:
        self._client.kill()
        self._client.wait()
        self._output.close()


def until(condition: Callable[[], object], timeout_s: float, explain: Callable[[], str]) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(POLL_S)


def assert_every_step_was_taken_once(deployment: Deployment, job: Job) -> None:
    """Each version once, from groups that no other step has, in numbers that the spec asks for; nothing left behind."""
    steps = deployment.psql(f"SELECT version, state FROM steps WHERE task = '{job.task}' ORDER BY version")
    assert steps == [[str(version), "trained"] for version in range(job.steps)]
    trained = deployment.psql(
        f"SELECT step, count(*) FROM groups WHERE task = '{job.task}' AND state = 'trained' GROUP BY step ORDER BY step"
    )
    assert trained == [[str(version), "16"] for version in range(job.steps)]
    (status,) = deployment.psql(f"SELECT state, version, open_groups, batched_groups FROM task_status WHERE task = '{job.task}'")
    assert status == ["finished", str(job.steps), "0", "0"]


def assert_client_saw_every_step_once(job: Job) -> None:
    """In order, whatever was killed meanwhile."""
    seen = job.steps_seen
    assert seen == list(range(1, job.steps + 1)), seen


def assert_client_saw_steps_again_from(job: Job, restored: int) -> None:
    """Every step in order, and those that were lost with the stores a second time: a backup of version `restored` does not have them."""
    seen = job.steps_seen
    repeated = len(seen) - job.steps
    assert repeated >= 1, (restored, seen)
    assert seen == [*range(1, restored + repeated + 1), *range(restored + 1, job.steps + 1)], (restored, seen)
