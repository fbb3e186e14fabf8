"""A deployment that was made without keys: it goes on, refuses to go on by accident, and is given keys while a task runs."""

from pathlib import Path

import pytest

from tests.compose.deployment import PASSWORDS, REPOSITORY, Deployment, log_events
from tests.compose.jobs import Job, assert_every_step_was_taken_once
from tests.e2e.page_commands import commands

pytestmark = [pytest.mark.timeout(1800), pytest.mark.acceptance]

SETTINGS = {name: f"pw{name.lower().replace('_', '')}" for name in ("NATS_PASSWORD", "POSTGRES_PASSWORD", "POSTGRES_OWNER_PASSWORD")}
WITHOUT_KEYS = ("docker-compose.yml", PASSWORDS)
FIRST = Deployment(files=WITHOUT_KEYS, settings=SETTINGS | {"POSTGRES_APP_PASSWORD": "pwapp"})


def test_running_task_continues_when_its_deployment_is_given_keys(deployment: Deployment, tmp_path: Path) -> None:
    for service in deployment.services:
        lines = [line.split("| ", 1)[1] for line in deployment.logs(service).splitlines() if "| {" in line]
        assert "nats_password" in [line["event"] for line in log_events("\n".join(lines))], service
    job = Job(deployment, tmp_path, "older", steps=120)
    job.advance(2)

    deployment.files = ("docker-compose.yml",)
    assert deployment.attempt([*deployment.command, "up", "-d", "--no-build"]).returncode != 0
    refusal = deployment.logs("init").splitlines()[-1]
    assert "the volume `nats` holds the streams of a deployment without keys" in refusal and "deploy/give-keys.sh" in refusal
    deployment.files = WITHOUT_KEYS
    deployment.compose("up", "-d", "--no-build")
    deployment.wait_until_ready(240)
    job.advance()
    refused = deployment.attempt(["deploy/give-keys.sh"])
    assert refused.returncode == 1 and "remove it from .env first" in refused.stderr
    deployment.files = ("docker-compose.yml",)

    # As interrupted after its first half: nothing starts with half of it, and the same command completes it.
    assert 3 <= job.version < job.steps
    deployment.compose("stop")
    deployment.compose("run", "--rm", "-T", "--no-deps", "init", "--from-existing")
    assert deployment.attempt([*deployment.command, "up", "-d", "--no-build"]).returncode != 0
    deployment.run(["deploy/give-keys.sh"])
    deployment.wait_until_ready(240)
    assert "accounts were made for: acme" in deployment.logs("accounts")
    job.advance()
    job.close()

    deployment.as_printed("docker compose run --rm marlaas keys create acme laptop --role owner --to /creds/acme.creds", tmp_path)
    later = Job(deployment, tmp_path, "later", steps=2)
    later.finish()
    later.close()
    job.advance(job.steps)
    for one in (job, later):
        assert_every_step_was_taken_once(deployment, one)

    deployment.compose("run", "--rm", "-T", "--no-deps", "--entrypoint", "sh", "init", "-c", "find /volumes/keys -mindepth 1 -delete")
    assert deployment.attempt([*deployment.command, "up", "-d", "--no-build"]).returncode != 0
    assert "streams of other keys than those in the volume `keys`" in deployment.logs("init")
    for command in commands("tenancy.md", "### A lost volume of keys"):
        deployment.as_printed(command.replace("deploy/", f"{REPOSITORY}/deploy/"), tmp_path)
    deployment.wait_until_ready(240)
    replaced = tmp_path / "replaced"
    replaced.mkdir()
    deployment.as_printed("docker compose run --rm --entrypoint rm marlaas /creds/acme.creds", tmp_path)
    deployment.as_printed("docker compose run --rm marlaas keys create acme laptop --role owner --to /creds/acme.creds", tmp_path)
    with_new_key = Job(deployment, replaced, "with-new-key", steps=2)
    with_new_key.finish()
    with_new_key.close()
