"""Real servers for tests: one PostgreSQL for each process that runs tests, a database and a NATS of its own for each test."""

import asyncio
import os
import signal
import subprocess
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
import pytest
from hypothesis import settings
from nats.errors import Error as NatsError
from sqlalchemy import make_url

from common.bus import Bus, Delivery
from common.bus.transport.timings import Timings
from common.errors import Unavailable
from common.resilience.backoff import Backoff
from common.streams import Stream
from marlaas.stack import database_folder, servers
from marlaas.stack.servers import Command

if TYPE_CHECKING:
    from tests.common.access.keyed import Keyed

T = TypeVar("T")
pytest_plugins = ("tests.long_tests", "tests.tiers")
RUN_FIRST = (
    "tests/chaos/",
    "tests/compose/",
    "tests/bench/test_main_paths",
    "tests/rollout/",
    "tests/common/test_cluster",
    "tests/trainer/test_process",
    "tests/e2e/",
    "tests/env/test_main",
    "tests/scheduler/maintenance/test_store_consistency",
)
"""Files that take minutes begin first: where several processes run the tests, none of these is left over for the end."""
APART = (
    "tests/bench/test_main_paths",
    "tests/common/test_cluster",
    "tests/trainer/test_process",
    "tests/env/test_main",
    "tests/env/hosted/test_hosted",
    "tests/e2e/",
)
"""Files whose tests share nothing and wait long, so that several processes may share them; any other file is one process's."""
ALONE = "tests/compose/"
"""Each of its files starts a whole deployment: one at a time."""
ENGINE = {f"tests/rollout/test_{name}.py" for name in ("adapters", "calculator", "engine", "service", "stop_strings")}
"""Files whose tests share the sampler's engine, which takes ten seconds to start: all of them are one process's."""

settings.register_profile("busy machine", deadline=None)  # how long an example takes says only what else runs here
settings.load_profile("busy machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((place for place, start in enumerate(RUN_FIRST) if item.nodeid.startswith(start)), len(RUN_FIRST)))
    apart = {file for item in items if "engine" in getattr(item, "fixturenames", ()) and (file := _file(item.nodeid)) not in ENGINE}
    if apart:
        raise pytest.UsageError(f"these files use the engine too: name them in ENGINE of {__file__}: {sorted(apart)}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Groups by name, with `--dist loadgroup`, as pytest-xdist 3.8 finds no mark in the ids of pytest 9.2."""
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

    assert log is None or isinstance(log, Producer)
    return ByGroup(config, log) if config.getvalue("dist") == "loadgroup" else None


def _group(nodeid: str) -> str:
    """Tests of one group run in one process, one after the other."""
    file = _file(nodeid)
    if file.startswith(ALONE):
        return ALONE
    return nodeid if file.startswith(APART) else "engine" if file in ENGINE else file


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


@contextmanager
def running(command: Command, port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The server as a child process that ends with the block."""
    with log.open("ab") as output:
        process = subprocess.Popen(command.argv, stdout=output, stderr=output, env=os.environ | command.env)
    try:
        servers.wait_until_listening(port, process, command.name)
        yield process
    finally:
        process.send_signal(signal.SIGINT)  # PostgreSQL's fast shutdown; SIGTERM would wait for its clients
        process.wait(timeout=250)


UNSAFE = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")
"""Data need not survive the machine's own crash; they do survive the server's."""
SHORT = ("max_wal_size=128MB", "authentication_timeout=10s")
"""A log that stays small; a connection that its client gave up while it was made keeps its database from being dropped no longer."""
SETTINGS = [part for setting in (*UNSAFE, *SHORT) for part in ("-c", setting)]


@contextmanager
def running_postgres(folder: Path) -> Iterator[int]:
    """Its port, until the block ends. libpq finds the passwords of its roles by itself, also in child processes."""
    port = servers.free_port()
    command = servers.postgres_command(folder / "data", port)
    os.environ["PGPASSFILE"] = str(database_folder.passfile(folder / "data"))
    with running(replace(command, argv=[*command.argv, *SETTINGS]), port, folder / "postgres.log"):
        yield port


def migrated(postgres_port: int) -> str:
    """Name of a new database, to be copied, that every migration has been applied to."""
    from scheduler_svc.migrate import migrate

    servers.create_database(postgres_port, "migrated")
    owner, admin = (servers.database_url(postgres_port, "migrated", role=role) for role in (servers.OWNER, servers.ADMIN))
    migrate(owner, admin_url=f"{admin}?passfile={os.environ['PGPASSFILE']}")
    return "migrated"


@pytest.fixture(scope="session")
def postgres_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_postgres(tmp_path_factory.mktemp("postgres")) as port:
        yield port


@pytest.fixture(scope="session")
def migrated_database(postgres_port: int) -> str:
    """Template of the tests' databases."""
    return migrated(postgres_port)


@pytest.fixture
def database_url(postgres_port: int, migrated_database: str) -> Iterator[str]:
    """A migrated database of its own for each test, copied: ten times as fast as migrating it. For the scheduler's role."""
    with database_copy(postgres_port, migrated_database) as url:
        yield url


@pytest.fixture
def owner_url(database_url: str) -> str:
    """The same database for the owner of the schema."""
    return as_role(database_url, servers.OWNER)


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
        connection.execute(statement.encode())


@pytest.fixture
def nats_url(tmp_path: Path) -> Iterator[str]:
    """A server of its own for each test: streams are global, and a server starts in a few milliseconds.

    Without keys: a test's one connection is a service and all that it talks with. What each key permits is tested in `common/access`, and
    by all that starts processes, which have their keys.
    """
    port = servers.free_port()
    with running(servers.nats_command(tmp_path / "nats", port, sync="1s"), port, tmp_path / "nats.log"):
        yield servers.nats_url(port)


@pytest.fixture
async def keyed(tmp_path: Path) -> "AsyncIterator[Keyed]":
    """A server that wants the keys of services that are processes, and none of the test doubles that are the others."""
    from tests.common.access.keyed import WITH_INSTALLED, keyed_server

    async with keyed_server(tmp_path / "keyed", open_to_tests=True, deployment=WITH_INSTALLED) as server:
        yield server


HASTY = Timings(backoff=Backoff(first_s=0.02, max_s=0.64))
"""Timings of the tests' own connections."""


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    async with await Bus.connect(nats_url, "test", timings=HASTY) as bus:
        await bus.declare()
        yield bus


@asynccontextmanager
async def at_work(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """`work` as a task of its own, cancelled at the end of the block."""
    runner = asyncio.create_task(work)
    try:
        yield runner
    finally:
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)


async def eventually(condition: object, timeout_s: float = 240.0) -> None:
    """Wait until `condition()` (plain or async) is true; a machine may be slow, and so may a server that is asked."""
    assert callable(condition)
    async with asyncio.timeout(timeout_s):
        while True:
            with suppress(Unavailable, NatsError, TimeoutError):
                result = condition()
                if asyncio.iscoroutine(result):
                    result = await result
                if result:
                    return
            await asyncio.sleep(0.02)


async def eventually_equals(asked: Callable[[], Awaitable[T]], expected: T, timeout_s: float = 240.0) -> None:
    """Wait until the answer equals `expected`."""

    async def equals() -> bool:
        return await asked() == expected

    await eventually(equals, timeout_s)


async def message_on(bus: Bus, stream: Stream, subject: str) -> Delivery:
    """The last message on `subject`, once there is one."""
    await eventually(lambda: bus.streams.last(stream, subject))
    found = await bus.streams.last(stream, subject)
    assert found is not None
    return found
