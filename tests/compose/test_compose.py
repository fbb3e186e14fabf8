"""The containers do what docs/operations.md says. One deployment for all tests of this file, in their order."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compose.deployment import REPOSITORY, SERVICES, Deployment, log_events

pytestmark = pytest.mark.timeout(3600)

READY_S = 180.0
"""Bound from nothing but images to a deployment that takes jobs: two cores with nothing else to do need a third of it."""
STEP_TIMEOUT_S = 240.0


class Job:
    """A task submitted with a plain NATS client, and what that client prints."""

    def __init__(self, deployment: Deployment, folder: Path, name: str, steps: int) -> None:
        self._deployment = deployment
        self.steps = steps
        text = (REPOSITORY / "examples" / "letters.toml").read_text()
        task_file = folder / f"{name}.toml"
        task_file.write_text(text.replace('name = "letters"', f'name = "{name}"', 1).replace("steps = 30", f"steps = {steps}"))
        self._output = (folder / f"{name}.out").open("w+")
        argv = [sys.executable, str(REPOSITORY / "examples" / "publish_job.py"), str(task_file), deployment.nats_url]
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

    def advance(self, by: int = 1) -> None:
        """Wait until that many more steps were taken."""
        aim = min(self.version + by, self.steps)
        until(lambda: self.version >= aim, STEP_TIMEOUT_S, lambda: self._deployment.logs(*SERVICES)[-8000:])

    def finish(self) -> None:
        self.advance(self.steps)
        assert self._client.wait(timeout=60) == 0, self.text
        assert self.lines[1] in ("accepted {}", "accepted {'new_tenant': True}")
        assert self.lines[-1].startswith("finished ")

    def close(self) -> None:
        self._client.kill()
        self._client.wait()
        self._output.close()


def until(condition: Callable[[], object], timeout_s: float, explain: Callable[[], str]) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.5)


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
    # The client saw each step once, in order, whatever was killed meanwhile.
    seen = [line.split("'version': ")[1].split(",")[0] for line in job.lines if line.startswith("step ")]
    assert seen == [str(version) for version in range(1, job.steps + 1)]


def test_cold_start_is_ready_in_time_and_as_hardened_as_it_says(deployment: Deployment) -> None:
    seconds = deployment.up()
    print(f"ready after {seconds:.0f} s")
    assert seconds < READY_S
    for service in SERVICES:
        container = deployment.containers(service)[0]
        assert deployment.run(["docker", "exec", container, "id", "-u"]).strip() == "10001"
        assert deployment.run(["docker", "inspect", "--format", "{{.HostConfig.ReadonlyRootfs}}", container]).strip() == "true"


def test_programs_of_policies_run_in_cpython(deployment: Deployment) -> None:
    """The container has no namespaces, either."""
    [chosen] = [line for line in deployment.compose("logs", "--no-color", "env").splitlines() if "sandbox_chosen" in line]
    assert '"sandbox": "confined"' in chosen


def test_scheduler_and_environments_have_small_images(deployment: Deployment) -> None:
    base = int(deployment.run(["docker", "image", "inspect", "--format", "{{.Size}}", "python:3.11-slim"]))
    for service in ("scheduler", "env"):
        size = int(deployment.run(["docker", "image", "inspect", "--format", "{{.Size}}", f"marlaas/{service}:test"]))
        print(f"{service}: {(size - base) / 1e6:.0f} MB on top of its base")
        assert size - base < 320e6
        probe = "import importlib.util as u; print([name for name in ('torch', 'vllm', 'transformers') if u.find_spec(name)])"
        assert deployment.compose("exec", "-T", service, "python", "-c", probe).strip() == "[]"


@pytest.mark.parametrize("service", ["nats", "postgres", *SERVICES])
def test_health_is_checked_within_every_ten_seconds(deployment: Deployment, service: str) -> None:
    """Each check starts processes, which took most of an idle deployment's processor time when there was one every 2 s."""
    container = deployment.containers(service)[0]
    until(lambda: len(deployment.check_times_s(container)) >= 3, 60, lambda: "fewer than three health checks")
    *_, before, last = deployment.check_times_s(container)
    assert last - before >= 9


def test_task_survives_a_kill_of_every_service_and_a_second_sampler(deployment: Deployment, tmp_path: Path) -> None:
    job = Job(deployment, tmp_path, "killed", steps=40)
    job.advance()
    for service in SERVICES:
        deployment.kill(service)
        assert deployment.containers(service) == []
        others = [health for other in SERVICES if other != service for health in deployment.health(other).values()]
        assert others == ["healthy"] * 3  # only its own stage waits
        deployment.up()
        job.advance()
    deployment.up(rollout=2)
    assert len(deployment.containers("rollout")) == 2
    job.finish()
    assert_every_step_was_taken_once(deployment, job)
    job.close()


def test_replicas_added_late_share_the_work(deployment: Deployment, tmp_path: Path) -> None:
    deployment.up(rollout=2, env=2, trainer=2)
    before = {id: deployment.metric(id, "marlaas_rollout_sampled_tokens_total") for id in deployment.containers("rollout")}
    jobs = [Job(deployment, tmp_path, name, steps=6) for name in ("shared-a", "shared-b", "shared-c")]
    for job in jobs:
        job.finish()
        assert_every_step_was_taken_once(deployment, job)
        job.close()
    for container, sampled in before.items():
        assert deployment.metric(container, "marlaas_rollout_sampled_tokens_total") > sampled

    def alive() -> list[list[str]]:
        return deployment.psql("SELECT stage, count(*) FROM stage_health WHERE alive GROUP BY stage ORDER BY stage")

    until(lambda: alive() == [["env", "2"], ["rollout", "2"], ["trainer", "2"]], 120, lambda: str(alive()))


def test_views_answer_in_psql(deployment: Deployment) -> None:
    for view in ("task_status", "task_staleness", "task_timeline", "tenant_usage", "stage_health"):
        assert deployment.psql(f"SELECT * FROM {view} LIMIT 1"), view
    (usage,) = deployment.psql("SELECT sampled_tokens > 0, trained_tokens > 0 FROM tenant_usage WHERE tenant = 'acme'")
    assert usage == ["t", "t"]
    assert deployment.psql("SELECT max(trained_max) <= max(max_staleness) FROM task_staleness") == [["t"]]


@pytest.mark.parametrize(
    ("service", "name", "value", "event"),
    [
        ("scheduler", "MARLAAS_NATS_URL", "nats://marlaas:wrong@nats:4222", "nats_refuses_credentials"),
        ("env", "MARLAAS_NATS_URL", "nats://marlaas:wrong@nats:4222", "nats_refuses_credentials"),
        ("trainer", "MARLAAS_NATS_URL", "nats://marlaas:marlaas@nowhere:4222", "nats_unreachable"),
        ("rollout", "MARLAAS_NATS_URL", "nats://marlaas:wrong@nats:4222", "nats_refuses_credentials"),
        ("scheduler", "MARLAAS_SCHEDULER_DATABASE_URL", "postgresql+psycopg://marlaas:wrong@postgres/marlaas", "postgres_refuses"),
        ("scheduler", "MARLAAS_SCHEDULER_DATABASE_URL", "postgresql+psycopg://marlaas:x@nowhere/marlaas", "postgres_unreachable"),
        ("scheduler", "MARLAAS_SCHEDULER_DATABASE_URL", "postgresql+psycopg://marlaas:marlaas@postgres/postgres", "schema_differs"),
    ],
)
def test_what_is_wrong_outside_is_one_line_an_attempt(deployment: Deployment, service: str, name: str, value: str, event: str) -> None:
    container = deployment.compose("run", "-d", "--no-deps", "-e", f"{name}={value}", service).split()[-1]
    try:

        def lines() -> list[str]:
            done = subprocess.run(["docker", "logs", container], capture_output=True, text=True, check=True)
            return (done.stdout + done.stderr).splitlines()

        until(lambda: sum(event in line for line in lines()) >= 3, 60, lambda: "\n".join(lines()))
        found = lines()
        said = log_events("\n".join(found))
        assert len(said) == len(found)  # nothing but structured lines: no traceback
        assert [line["event"] for line in said if line["event"] != event] == ["nats_password", "starting"]
        attempts = [line["attempt"] for line in said if line["event"] == event]
        assert attempts == list(range(1, len(attempts) + 1))
    finally:
        deployment.run(["docker", "rm", "-f", container])


def test_running_task_continues_after_down_and_up_and_after_a_restore(deployment: Deployment, tmp_path: Path) -> None:
    job = Job(deployment, tmp_path, "resumed", steps=30)
    job.advance(2)
    deployment.compose("down")
    seconds = deployment.up()
    print(f"ready after {seconds:.0f} s")
    job.advance()
    deployment.run(["deploy/backup.sh", str(tmp_path / "backup")])
    deployment.compose("down", "--volumes")
    deployment.run(["deploy/restore.sh", str(tmp_path / "backup")])
    restored = int(deployment.psql(f"SELECT version FROM tasks WHERE id = '{job.task}'")[0][0])
    assert 3 <= restored <= job.steps
    deployment.up()
    job.finish()
    assert_every_step_was_taken_once(deployment, job)
    job.close()
