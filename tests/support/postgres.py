"""PostgreSQL for tests: a server in memory, a migrated template, and copies of it."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
from psycopg.errors import ObjectInUse
from sqlalchemy import make_url

from marlaas.stack import database_folder, servers
from tests.support.servers import fast_folder, running

UNSAFE = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")
"""Data need not survive the machine's own crash; they do survive the server's."""
SHORT = ("max_wal_size=128MB", "authentication_timeout=10s")
"""A log that stays small; a connection that its client gave up while it was made keeps its database from being dropped no longer."""
SETTINGS = [part for setting in (*UNSAFE, *SHORT) for part in ("-c", setting)]


@contextmanager
def running_postgres(folder: Path) -> Iterator[int]:
    """Its port, until the block ends; `folder` gets its log. libpq finds the passwords of its roles by itself, also in child processes."""
    with fast_folder() as fast:
        data, port = fast / "data", servers.free_port()
        fast.chmod(0o755)  # PostgreSQL runs as another user than root
        command = servers.postgres_command(data, port)
        os.environ["PGPASSFILE"] = str(database_folder.passfile(data))
        with running(replace(command, argv=[*command.argv, *SETTINGS]), port, folder / "postgres.log"):
            yield port


def migrated(postgres_port: int) -> str:
    """Name of a new database, to be copied, that every migration has been applied to."""
    from scheduler_svc.migrate import migrate

    servers.create_database(postgres_port, "migrated")
    owner, admin = (servers.database_url(postgres_port, "migrated", role=role) for role in (servers.OWNER, servers.ADMIN))
    migrate(owner, admin_url=f"{admin}?passfile={os.environ['PGPASSFILE']}")
    return "migrated"


def as_role(url: str, role: str) -> str:
    """The database's address for another role."""
    return make_url(url).set(username=role).render_as_string(hide_password=False)


def copied_database(postgres_port: int, template: str) -> str:
    """URL of a new database with the content of `template`, which must have no connections."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    _administer(postgres_port, f"CREATE DATABASE {name} OWNER {servers.OWNER} TEMPLATE {template} STRATEGY file_copy")
    return servers.database_url(postgres_port, name)


@contextmanager
def database_copy(postgres_port: int, template: str) -> Iterator[str]:
    """URL of a copy of `template` until the block ends: the copies of all tests, ten megabytes each, would fill a disk."""
    url = copied_database(postgres_port, template)
    try:
        yield url
    finally:
        _administer(postgres_port, f"DROP DATABASE {make_url(url).database} WITH (FORCE)")


def _administer(postgres_port: int, statement: str) -> None:
    address = servers.database_url(postgres_port, "postgres", role=servers.ADMIN).replace("+psycopg", "")
    with psycopg.connect(address, autocommit=True) as connection:
        for is_last in (*[False] * 11, True):
            try:
                connection.execute(statement.encode())
                return
            except ObjectInUse:  # PostgreSQL waits 5 s for a database's other sessions to end; on a busy machine they may take longer
                if is_last:
                    raise
