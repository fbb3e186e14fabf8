"""PostgreSQL on a bare machine: passwords for everybody, and no privileges."""

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from common.passwords import read_passwords
from marlaas.stack import database_folder, servers
from tests.support.servers import running

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="other users are only there for root")


@contextmanager
def serving(folder: Path) -> Iterator[int]:
    port = servers.free_port()
    with running(servers.postgres_command(folder, port), port, folder.parent / "postgres.log"):
        servers.create_database(port, passfile=database_folder.passfile(folder))  # waits for the server's own start
        yield port


def connect(port: int, role: str, **options: str) -> psycopg.Connection:
    return psycopg.connect(host=servers.HOST, port=port, user=role, dbname="postgres", autocommit=True, **options)


def test_nobody_connects_without_the_password(tmp_path: Path) -> None:
    folder = tmp_path / "postgres"
    with serving(folder) as port:
        passfile = database_folder.passfile(folder)
        assert stat.S_IMODE(passfile.stat().st_mode) == 0o600
        assert stat.S_IMODE(passfile.parent.stat().st_mode) == 0o700
        for role in (servers.ADMIN, servers.OWNER, servers.APP, servers.READER):
            for options in ({"passfile": "/nowhere"}, {"password": ""}, {"password": "marlaas"}):
                with pytest.raises(psycopg.OperationalError, match=r"no password supplied|password authentication failed"):
                    connect(port, role, **options)
        with connect(port, servers.ADMIN, passfile=str(passfile)) as connection:
            assert connection.execute("SELECT rolpassword LIKE 'SCRAM-SHA-256$%' FROM pg_authid WHERE rolname = 'marlaas'").fetchone() == (
                True,
            )
    log = (tmp_path / "postgres.log").read_text()
    assert not any(password in log for password in read_passwords(passfile).values())


@ROOT_ONLY
def test_server_of_root_reads_no_file_of_root(tmp_path: Path) -> None:
    """Below a folder that is root's alone, and also for the superuser, to whom PostgreSQL gives files and programs."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "secret").write_text("canary")
    (closed / "secret").chmod(0o600)
    folder = closed / "postgres"
    with serving(folder) as port, connect(port, servers.ADMIN, passfile=str(database_folder.passfile(folder))) as connection:
        [pid] = [int(folder.joinpath("postmaster.pid").read_text().split()[0])]
        status = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
        assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
        assert status["Uid"].split()[0] != "0"
        for statement in (
            f"SELECT pg_read_file('{closed}/secret')",
            "SELECT pg_read_file('/etc/shadow')",
            f"COPY (SELECT 1) TO PROGRAM 'cat {closed}/secret'",
            f"COPY (SELECT 1) TO PROGRAM 'cat {database_folder.passfile(folder)}'",
        ):
            with pytest.raises(psycopg.Error, match=r"Permission denied|program .* failed"):
                connection.execute(statement.encode())


def test_refused_statement_ends_the_start_and_a_warning_of_the_loader_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dynamic loader, too, writes "ERROR:", and goes on."""
    folder = tmp_path / "postgres"
    monkeypatch.setenv("LD_PRELOAD", "/nowhere/library.so")
    database_folder.prepare(folder)
    passwords = database_folder.passfile(folder)
    passwords.unlink()
    monkeypatch.setattr(database_folder, "ADMIN", "missing")
    with pytest.raises(database_folder.ServerError, match='role "missing" does not exist'):
        database_folder.prepare(folder)


def test_lost_password_file_is_made_anew_and_a_kept_one_stays(tmp_path: Path) -> None:
    folder = tmp_path / "postgres"
    passfile = database_folder.passfile(folder)
    database_folder.prepare(folder)
    before = read_passwords(passfile)
    database_folder.prepare(folder)
    assert read_passwords(passfile) == before
    passfile.unlink()
    with serving(folder) as port:
        assert set(read_passwords(passfile).values()).isdisjoint(before.values())
        connect(port, servers.ADMIN, passfile=str(passfile)).close()


@ROOT_ONLY
def test_programs_out_of_reach_are_copied_once(tmp_path: Path) -> None:
    closed, package = tmp_path / "closed", Path(servers.postgres_binary("postgres")).parents[2]
    closed.mkdir(mode=0o700)
    for folder in (package, package.with_name(f"{package.name}.libs")):
        subprocess.run(["cp", "-a", str(folder), str(closed)], check=True)
    installation = closed / package.name / "pginstall18"
    copies = Path("/var/tmp") / f"marlaas-test-{os.getpid()}"
    try:
        copy = database_folder.reachable(installation, copies)
        assert copies in copy.parents
        assert database_folder.reachable(installation, copies) == copy
        assert len(list(copies.iterdir())) == 1
        assert database_folder.reachable(copy, copies) == copy
        as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]
        done = subprocess.run([*as_nobody, str(copy / "bin" / "initdb"), "--version"], capture_output=True, text=True)
        assert done.stdout.startswith("initdb (PostgreSQL)"), done.stderr
    finally:
        subprocess.run(["rm", "-rf", str(copies)], check=True)
