"""How people reach the database of a stack on this machine: `marlaas psql`, `marlaas database`."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from common.access.folder import credentials_path
from common.passwords import read_passwords
from marlaas.stack import control, database_folder, servers
from marlaas.stack.state_files import Stack
from tests.support.marlaas.command import MARLAAS
from tests.support.paths import ROOT
from tests.support.postgres import as_role
from tests.support.services import is_ready, service_process, without_settings
from tests.support.waiting import eventually

TENANTS = "INSERT INTO tenants (id) VALUES ('acme'), ('globex')"
TASK = (
    "INSERT INTO tasks (submission, id, tenant, name, pool, spec, state, priority, steps, group_size, groups_per_step, max_staleness, "
    "trajectory_tokens) SELECT '', id || '-task', id, id, 'tiny', '{}', 'running', 0, 1, 2, 2, 0, 9 FROM tenants"
)
README_VIEWS = ("task_status", "task_staleness", "task_timeline", "task_storage", "tenant_usage")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Stack]]:
    """Servers and migrations of `marlaas up`, without services."""
    data = tmp_path_factory.mktemp("stack")
    plan = control.make_plan(data, ROOT / "pools.toml").model_copy(update={"services": []})
    try:
        yield data, control.wait_until_ready(control.start(plan), lambda _: None)
    finally:
        control.stop(data)


def marlaas(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does: without what these tests have in the environment for their own server."""
    env = {name: value for name, value in os.environ.items() if name != "PGPASSFILE"}
    return subprocess.run([MARLAAS, *arguments, "--data", str(data)], env=env, capture_output=True, text=True, timeout=120)


def out(data: Path, *arguments: str) -> str:
    done = marlaas(data, *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_people_read_and_the_owner_changes_rows(stack: tuple[Path, Stack]) -> None:
    data, _ = stack
    assert "INSERT 0 2" in out(data, "psql", "--owner", "-c", TENANTS)
    assert "INSERT 0 2" in out(data, "psql", "--owner", "-c", TASK)
    assert "acme-task" in out(data, "psql", "-c", "SELECT task FROM task_status")
    refused = marlaas(data, "psql", "-c", "UPDATE tenants SET weight = 2")
    assert "permission denied for table tenants" in refused.stderr


def test_tenant_reads_its_rows_until_its_role_is_revoked(stack: tuple[Path, Stack]) -> None:
    data, running = stack
    granted = out(data, "database", "grant", "acme")
    [address] = re.findall(r"psql (postgresql://\S+)", granted)
    password = granted.split()[-1]
    assert f":{running.postgres_port}/" in address
    assert out(data, "database", "list") == f"acme  {address.split('//')[1].split('@')[0]}\n"
    with psycopg.connect(address, password=password, autocommit=True) as connection:
        for view in README_VIEWS:
            rows = str(connection.execute(f"SELECT * FROM {view}".encode()).fetchall())
            assert "globex" not in rows
            assert "acme" in rows or view == "task_timeline"
        again = out(data, "database", "grant", "acme").split()[-1]
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(address, password=password)
        assert "its sessions ended" in out(data, "database", "revoke", "acme")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(address, password=again)
    assert out(data, "database", "list") == "no tenant has a role\n"
    for verb, problem in (("grant", "there is no tenant 'nobody'"), ("revoke", "tenant 'nobody' has no role")):
        assert problem in marlaas(data, "database", verb, "nobody").stderr


def test_no_process_or_file_but_one_has_a_password(stack: tuple[Path, Stack]) -> None:
    """Arguments and environments of all processes, status, logs, plan.json, stack.json."""
    data, running = stack
    passfile = database_folder.passfile(data / "postgres")
    passwords = [password.encode() for password in read_passwords(passfile).values()]
    assert len(passwords) == 4
    texts = {"status": marlaas(data, "status").stdout.encode(), "address": out(data, "psql", "--address").encode()}
    texts |= {
        str(path): path.read_bytes() for path in data.rglob("*") if path.is_file() and path != passfile and "postgres/" not in str(path)
    }
    for process in [running.supervisor, *(component.process for component in running.components if component.process)]:
        texts |= {f"{process.pid} {kind}": Path(f"/proc/{process.pid}/{kind}").read_bytes() for kind in ("cmdline", "environ")}
    assert [name for name, text in texts.items() if any(password in text for password in passwords)] == []
    assert str(data / "plan.json") in texts
    assert servers.APP in texts[str(data / "plan.json")].decode()


async def test_deleted_tenant_loses_its_role(stack: tuple[Path, Stack], tmp_path: Path) -> None:
    data, running = stack
    out(data, "psql", "--owner", "-c", "INSERT INTO tenants (id) VALUES ('umbrella')")
    out(data, "database", "grant", "umbrella")
    port, app = servers.lasting_port(), as_role(running.database_url, servers.APP)
    settings = {"MARLAAS_NATS_URL": running.nats_url, "MARLAAS_SCHEDULER_DATABASE_URL": app, "MARLAAS_HTTP_PORT": str(port)}
    settings |= {"MARLAAS_NATS_CREDS": str(credentials_path(data / "keys", "scheduler"))}
    with service_process("scheduler_svc", without_settings() | settings, tmp_path / "log"):
        await eventually(lambda: is_ready(port))
        kept = dict(line.split(maxsplit=1) for line in out(data, "tenants", "set", "umbrella", "--keep", "adapters=90").splitlines())
        assert (kept["adapters_days"], kept["tasks_days"]) == ("90", "0")
        wrong = marlaas(data, "tenants", "set", "umbrella", "--keep", "adapters=ever")
        assert (wrong.returncode, "'adapters=ever' is not" in wrong.stderr) == (2, True), wrong.stderr
        receipt = dict(line.split() for line in out(data, "tenants", "delete", "umbrella", "--yes").splitlines())
        assert receipt.items() >= {"tasks": "0", "messages": "1", "role": "removed"}.items()
        assert "umbrella" not in out(data, "database", "list")
        again = marlaas(data, "tenants", "delete", "umbrella", "--yes")
        assert (again.returncode, "'umbrella' was deleted already, at 20" in again.stderr) == (1, True), again.stderr
        unanswered = marlaas(data, "tenants", "delete", "nobody")
        assert (unanswered.returncode, "Aborted" in unanswered.stderr) == (1, True), unanswered.stderr
