"""The containers do what docs/operations.md says. One deployment for all tests of this file, in their order."""

import ast
import json
import re
import subprocess
from pathlib import Path

import httpx
import pytest

from common.access.folder import issue_service_keys, open_or_make
from common.access.services import Deployment as AccessDeployment
from tests.compose.deployment import SERVICES, Deployment, log_events
from tests.compose.jobs import (
    Job,
    assert_client_saw_every_step_once,
    assert_client_saw_steps_again_from,
    assert_every_step_was_taken_once,
    until,
)
from tests.support.marlaas.command import MARLAAS
from tests.support.page_commands import commands
from tests.support.paths import ROOT

pytestmark = pytest.mark.timeout(3600)

READY_S = 180.0
"""Bound from nothing but images to a deployment that takes jobs: two cores with nothing else to do need a third of it."""
SECRETS = {name: ["/run/marlaas/nats.creds"] for name in SERVICES} | {"scheduler": ["/run/marlaas/nats.creds", "/run/marlaas/pgpass"]}
"""Files that a service alone can read."""


def test_cold_start_is_ready_in_time_and_as_hardened_as_it_says(deployment: Deployment) -> None:
    print(f"ready after {deployment.cold_start_s:.0f} s")
    assert deployment.cold_start_s < READY_S
    for service in SERVICES:
        container = deployment.containers(service)[0]
        assert deployment.run(["docker", "exec", container, "id", "-u"]).strip() == "10001"
        assert deployment.run(["docker", "inspect", "--format", "{{.HostConfig.ReadonlyRootfs}}", container]).strip() == "true"


def test_each_container_has_its_own_secrets_and_no_others(deployment: Deployment) -> None:
    """Neither in the environment nor in arguments, and in files only those of its own volume, which others cannot read."""
    for service in ("nats", "postgres", *SERVICES):
        container = deployment.containers(service)[0]
        found = deployment.run(["docker", "inspect", container])
        assert not re.search(r"PASSWORD=\w|passwor[dt]:|-----BEGIN|://[^/@\"]+:[^/@\"]+@|marlaas:marlaas", found), service
        volumes = {mount["Name"].removeprefix(f"{deployment.project}_") for mount in json.loads(found)[0]["Mounts"] if "Name" in mount}
        access = {"nats": {"nats", "nats-access"}, "postgres": {"postgres", "postgres-access"}}.get(service, {f"{service}-secrets"})
        assert volumes - {"models"} == access
        if service in SERVICES:
            listed = deployment.run(["docker", "exec", container, "stat", "-c", "%n %a %U", "/run/marlaas", *SECRETS[service]]).splitlines()
            assert listed == ["/run/marlaas 700 marlaas", *(f"{name} 600 marlaas" for name in SECRETS[service])]
            assert len(deployment.run(["docker", "exec", container, "ls", "-A", "/run/marlaas"]).split()) == len(SECRETS[service])


def test_log_says_where_the_keys_are_and_each_opens_what_it_says(deployment: Deployment, tmp_path: Path) -> None:
    printed = [line.split(": ", 1)[1] for line in deployment.logs("accounts").splitlines() if " > " in line]
    assert [command.rsplit(maxsplit=1)[1] for command in printed] == ["operator.creds", "acme.creds"]
    for command in printed:
        deployment.as_printed(command, tmp_path)
    task_file = tmp_path / "globex.toml"
    task_file.write_text((ROOT / "examples" / "letters.toml").read_text().replace('"acme"', '"globex"').replace("= 30", "= 1"))

    def marlaas(key: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        named = ["--creds", str(tmp_path / key)] if key else []
        return deployment.attempt([MARLAAS, *named, *arguments, "--url", deployment.nats_url])

    assert "a key" in marlaas("", "ps").stderr
    refused = marlaas("acme.creds", "submit", str(task_file))
    assert refused.returncode == 1 and "globex" in refused.stderr
    assert marlaas("acme.creds", "ps").returncode == 0
    assert marlaas("operator.creds", "submit", str(task_file), "--id", "of-globex").returncode == 0
    assert "of-globex" not in marlaas("acme.creds", "ps").stdout


def test_operator_makes_tenants_and_keys(deployment: Deployment, tmp_path: Path) -> None:
    """The commands of docs/tenancy.md, With containers."""
    for command in commands("tenancy.md", "\n## With containers"):
        deployment.as_printed(command, tmp_path)
    key = tmp_path / "initech.creds"
    assert deployment.attempt([MARLAAS, "--creds", str(key), "ps", "--url", deployment.nats_url]).returncode == 0
    assert key.stat().st_mode & 0o077 == 0


def test_keys_and_passwords_stay_at_the_next_start(deployment: Deployment) -> None:
    def secrets() -> list[str]:
        reading = "cd /volumes && find keys creds secrets -type f ! -path 'keys/creds/*' ! -name nats.creds | sort | xargs sha256sum"
        return deployment.compose("run", "--rm", "-T", "--no-deps", "--entrypoint", "sh", "init", "-c", reading).splitlines()

    before = secrets()
    assert len(before) >= 8
    deployment.up()
    assert secrets() == before
    assert "keys and passwords are there" in deployment.logs("init")
    assert not [line for line in deployment.logs("accounts").splitlines()[-4:] if "accounts were made" in line]


def test_programs_of_policies_run_in_cpython(deployment: Deployment) -> None:
    """The container has no namespaces, either."""
    [chosen] = [line for line in deployment.compose("logs", "--no-color", "env").splitlines() if "sandbox_chosen" in line]
    assert '"sandbox": "confined"' in chosen


def test_gateway_answers_holders_of_keys_on_loopback_alone(deployment: Deployment, tmp_path: Path) -> None:
    [found] = json.loads(deployment.run(["docker", "inspect", deployment.containers("gateway")[0]]))
    published = {port: places for port, places in found["NetworkSettings"]["Ports"].items() if places}
    assert published == {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(deployment.gateway_port)}]}
    made = deployment.as_printed("docker compose run --rm -T marlaas keys create acme web --http", tmp_path)
    [key] = re.findall(r"mk-\S+", made)

    def status(**headers: str) -> int:
        return httpx.get(f"http://127.0.0.1:{deployment.gateway_port}/v1/tasks", headers=headers, timeout=60).status_code

    assert status() == status(Authorization=f"Bearer {key[:-1]}") == 401
    until(lambda: status(Authorization=f"Bearer {key}") == 200, 60, lambda: deployment.logs("gateway")[-3000:])


SMALL = {"scheduler": 320e6, "gateway": 120e6, "env": 320e6}
"""Images without torch, and their bounds in bytes on top of the Python image, which has 130 MB."""


def test_services_without_torch_have_small_images(deployment: Deployment) -> None:
    base = int(deployment.run(["docker", "image", "inspect", "--format", "{{.Size}}", "python:3.11-slim"]))
    for service, bound in SMALL.items():
        size = int(deployment.run(["docker", "image", "inspect", "--format", "{{.Size}}", f"marlaas/{service}:test"]))
        print(f"{service}: {(size - base) / 1e6:.0f} MB on top of its base")
        assert size - base < bound
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
        healths = deployment.healths()
        others = [health for other in SERVICES if other != service for health in healths[other].values()]
        assert others == ["healthy"] * (len(SERVICES) - 1)  # only its own stage waits
        deployment.up()
        job.advance()
    deployment.up(rollout=2)
    assert len(deployment.containers("rollout")) == 2
    job.finish()
    assert_every_step_was_taken_once(deployment, job)
    assert_client_saw_every_step_once(job)
    job.close()


def test_replicas_added_late_share_the_work(deployment: Deployment, tmp_path: Path) -> None:
    deployment.up(rollout=2, env=2, trainer=2)
    before = {id: deployment.metric(id, "marlaas_rollout_sampled_tokens_total") for id in deployment.containers("rollout")}
    jobs = [Job(deployment, tmp_path, name, steps=6) for name in ("shared-a", "shared-b", "shared-c")]
    for job in jobs:
        job.finish()
        assert_every_step_was_taken_once(deployment, job)
        assert_client_saw_every_step_once(job)
        job.close()
    for container, sampled in before.items():
        assert deployment.metric(container, "marlaas_rollout_sampled_tokens_total") > sampled

    def alive() -> list[list[str]]:
        return deployment.psql("SELECT stage, count(*) FROM stage_health WHERE alive GROUP BY stage ORDER BY stage")

    until(lambda: alive() == [["env", "2"], ["gateway", "1"], ["rollout", "2"], ["trainer", "2"]], 120, lambda: str(alive()))


def test_views_answer_in_psql(deployment: Deployment) -> None:
    for view in ("task_status", "task_staleness", "task_timeline", "tenant_usage", "stage_health"):
        assert deployment.psql(f"SELECT * FROM {view} LIMIT 1"), view
    (usage,) = deployment.psql("SELECT sampled_tokens > 0, trained_tokens > 0 FROM tenant_usage WHERE tenant = 'acme'")
    assert usage == ["t", "t"]
    assert deployment.psql("SELECT max(trained_max) <= max(max_staleness) FROM task_staleness") == [["t"]]


REFUSED_CALLS = (
    "ptrace:101 keyctl:250 bpf:321 perf_event_open:298 io_uring_setup:425 userfaultfd:323 kexec_load:246 init_module:175 mount_setattr:442"
)
"""System calls that no container of this deployment has a use for, with their numbers on x86-64."""


def test_packages_of_tenants_are_played_in_sandboxes_of_their_own(deployment: Deployment, tmp_path: Path) -> None:
    """The commands of docs/environments.md, Packages of tenants, with a tenant's key and the service env-tenants."""
    with deployment.optional("env-tenants") as container:
        (tmp_path / "examples").symlink_to(ROOT / "examples")
        signed_in = f"MARLAAS_NATS_CREDS={deployment.tenants_key(tmp_path)} MARLAAS_NATS_URL={deployment.nats_url} {Path(MARLAAS).parent}/"
        page = commands("environments.md", "## Packages of tenants")
        shown = [deployment.as_printed(signed_in + command, tmp_path) for command in page]
        assert "own:letter_count" in shown[0] and "finished" in shown[2] and "usable" in shown[3]
        said = deployment.run(["docker", "logs", container])
        assert '"event": "own_served"' in said
        calls = ",".join(name.rpartition(":")[2] for name in REFUSED_CALLS.split())
        called = f"[(c.syscall(n, 0, 0, 0, 0, 0), ctypes.get_errno()) for n in ({calls})]"
        probe = f"import ctypes; c = ctypes.CDLL(None, use_errno=True); print({called})"
        assert set(ast.literal_eval(deployment.run(["docker", "exec", container, "python", "-c", probe]))) == {(-1, 1)}
        assert deployment.run(["docker", "exec", container, "id", "-u"]).strip() == "10001"


@pytest.mark.parametrize(
    ("service", "name", "value", "event"),
    [
        ("trainer", "MARLAAS_NATS_URL", "nats://nowhere:4222", "nats_unreachable"),
        ("scheduler", "MARLAAS_SCHEDULER_DATABASE_URL", "postgresql+psycopg://marlaas:wrong@postgres/marlaas", "postgres_refuses"),
        ("scheduler", "MARLAAS_SCHEDULER_DATABASE_URL", "postgresql+psycopg://marlaas:x@nowhere/marlaas", "postgres_unreachable"),
    ],
)
def test_what_is_wrong_outside_is_one_line_an_attempt(deployment: Deployment, service: str, name: str, value: str, event: str) -> None:
    says_one_line_an_attempt(deployment, deployment.compose("run", "-d", "--no-deps", "-e", f"{name}={value}", service).split()[-1], event)


def test_database_without_this_versions_schema_is_one_line_an_attempt(deployment: Deployment) -> None:
    deployment.psql("CREATE DATABASE other OWNER marlaas_app")
    address = "MARLAAS_SCHEDULER_DATABASE_URL=postgresql+psycopg://marlaas_app@postgres/other?passfile=/run/marlaas/pgpass"
    container = deployment.compose("run", "-d", "--no-deps", "-e", address, "scheduler").split()[-1]
    says_one_line_an_attempt(deployment, container, "schema_differs")


@pytest.mark.parametrize("service", SERVICES)
def test_key_of_another_deployment_is_one_line_an_attempt(deployment: Deployment, service: str, tmp_path: Path) -> None:
    other = open_or_make(tmp_path / "keys")
    issue_service_keys(other, AccessDeployment(("tiny",), ("module",)))
    key = tmp_path / "other.creds"
    key.write_text(other.credentials(service).read_text())
    key.chmod(0o644)  # the containers' user is not this one
    start = ["-c", f"umask 077; cp /other.creds /tmp/key; exec python -m {service}_svc"]
    argv = ["run", "-d", "--no-deps", "-v", f"{key}:/other.creds:ro", "-e", "MARLAAS_NATS_CREDS=/tmp/key", "--entrypoint", "sh", service]
    says_one_line_an_attempt(deployment, deployment.compose(*argv, *start).split()[-1], "nats_refuses_credentials")


def says_one_line_an_attempt(deployment: Deployment, container: str, event: str) -> None:
    try:

        def lines() -> list[str]:
            done = subprocess.run(["docker", "logs", container], capture_output=True, text=True, check=True)
            return (done.stdout + done.stderr).splitlines()

        until(lambda: sum(event in line for line in lines()) >= 3, 60, lambda: "\n".join(lines()))
        found = lines()
        said = log_events("\n".join(found))
        assert len(said) == len(found)  # nothing but structured lines: no traceback
        assert [line["event"] for line in said if line["event"] != event] == ["starting"]
        attempts = [line["attempt"] for line in said if line["event"] == event]
        assert attempts == list(range(1, len(attempts) + 1))
    finally:
        deployment.run(["docker", "rm", "-f", container])


def test_running_task_continues_after_down_and_up_and_after_a_restore(deployment: Deployment, tmp_path: Path) -> None:
    job = Job(deployment, tmp_path, "resumed", steps=60)
    job.advance(2)
    deployment.compose("down")
    seconds = deployment.up()
    print(f"ready after {seconds:.0f} s")
    job.advance()
    deployment.run(["deploy/backup.sh", str(tmp_path / "backup")])
    job.advance()
    until(lambda: job.steps_seen[-1] >= job.version, 60, lambda: job.text)
    deployment.compose("down", "--volumes")
    deployment.run(["deploy/restore.sh", str(tmp_path / "backup")])
    restored = int(deployment.psql(f"SELECT version FROM tasks WHERE id = '{job.task}'")[0][0])
    assert 3 <= restored <= job.steps
    deployment.up()
    job.finish()
    assert_every_step_was_taken_once(deployment, job)
    assert_client_saw_steps_again_from(job, restored)
    job.close()


@pytest.mark.slow  # the same on one machine: tests/marlaas/stack/test_keys.py
def test_running_task_continues_after_its_deployment_lost_its_keys(deployment: Deployment, tmp_path: Path) -> None:
    deployment.as_printed("docker compose run --rm marlaas keys create acme lost --role owner --to /creds/lost.creds", tmp_path)
    deployment.tenants_key(tmp_path, "lost").rename(tmp_path / "acme.creds")  # the first key is gone after a restore
    job = Job(deployment, tmp_path, "lost-keys", steps=60)
    job.advance(2)
    replace = [one for one in commands("tenancy.md", "## Lost or stolen signing keys") if one.startswith("docker ")]
    for command in replace[:2]:
        deployment.as_printed(command, tmp_path)
    assert deployment.attempt([*deployment.command, "up", "-d", "--no-build"]).returncode != 0
    assert "streams of other keys than those in the volume `keys`" in deployment.logs("init")
    for command in replace[2:-1]:
        deployment.as_printed(command, tmp_path)
    deployment.wait_until_ready(240)
    assert "updated in NATS: acme" in deployment.as_printed(replace[-1], tmp_path)
    job.close()
    argv = [MARLAAS, "--creds", str(tmp_path / "acme.creds"), "ps", "--url", deployment.nats_url]
    refused = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert refused.returncode == 1 and "refuses key" in refused.stderr
    (tmp_path / "acme.creds").unlink()
    deployment.as_printed("docker compose run --rm --entrypoint rm marlaas -f /creds/acme.creds", tmp_path)
    deployment.as_printed("docker compose run --rm marlaas keys create acme laptop --role owner --to /creds/acme.creds", tmp_path)
    later = Job(deployment, tmp_path, "later", steps=2)
    later.finish()
    later.close()
    job.advance(job.steps)
    for one in (job, later):
        assert_every_step_was_taken_once(deployment, one)
