"""Real servers for tests: one PostgreSQL for each process that runs tests, a database and a NATS of its own for each test."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from common.bus import Bus
from marlaas.stack import servers
from tests.support.buses import HASTY
from tests.support.keyed import WITH_INSTALLED, Keyed, keyed_server
from tests.support.postgres import as_role, database_copy, migrated, running_postgres
from tests.support.servers import fast_folder, running

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


@pytest.fixture
def nats_folder() -> Iterator[Path]:
    """Where the test's NATS keeps its data."""
    with fast_folder() as folder:
        yield folder


@pytest.fixture
def nats_url(nats_folder: Path, tmp_path: Path) -> Iterator[str]:
    """A server of its own for each test: streams are global, and a server starts in a few milliseconds.

    Without keys: a test's one connection is a service and all that it talks with. What each key permits is tested in `common/access`, and
    by all that starts processes, which have their keys.
    """
    port = servers.free_port()
    with running(servers.nats_command(nats_folder, port, sync="1s"), port, tmp_path / "nats.log"):
        yield servers.nats_url(port)


@pytest.fixture
async def keyed(nats_folder: Path) -> AsyncIterator[Keyed]:
    """A server that wants the keys of services that are processes, and none of the test doubles that are the others."""
    async with keyed_server(nats_folder, open_to_tests=True, deployment=WITH_INSTALLED) as server:
        yield server


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    async with await Bus.connect(nats_url, "test", timings=HASTY) as bus:
        await bus.declare()
        yield bus
