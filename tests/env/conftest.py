"""What the tests of this folder share: worker processes, whose start imports reasoning-gym; an interpreter; the sandbox for hosts."""

import asyncio
import json
import shutil
import sys
import venv
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from env_svc import datasets
from env_svc.execution.workers import Workers
from env_svc.hosted.confinement import Confinement, NotConfined, find_confinement
from tests.env.hosted.targets import Target, aimed_at
from tests.support.paths import ROOT

FAMILIES = ["reasoning_gym", "module"]
WORKER_MEMORY_BYTES = 2 * 2**30


@pytest.fixture(scope="session")
def workers() -> Iterator[Workers]:
    workers = Workers(2, FAMILIES, WORKER_MEMORY_BYTES)
    asyncio.run(workers.start())
    yield workers
    asyncio.run(workers.stop())


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of a second virtual environment, with another version of a package that ours has too."""
    folder = tmp_path_factory.mktemp("guest") / "venv"
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    shutil.copy(Path(__file__).parent / "hosted" / "guest.py", site)
    (site / "tabulate.py").write_text("__version__ = '99 of the guest'\n")
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (site / "shared.pth").write_text("\n".join([str(ROOT), *ours]))  # marlaas itself; looked at after the guest's own
    return str(folder / "bin" / "python")


@pytest.fixture(scope="session")
def sandbox() -> Confinement:
    """The sandbox of hosts. A machine without one is loud about it."""
    try:
        return asyncio.run(find_confinement())
    except NotConfined as error:
        pytest.skip(f"THE SANDBOX OF HOSTED ENVIRONMENTS IS NOT TESTED: {error}")


@pytest.fixture
async def target(nats_url: str, postgres_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Target]:
    async with aimed_at(nats_url, postgres_port, tmp_path, monkeypatch) as target:
        yield target


FILES = count()


@pytest.fixture
def rows_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Writes rows, or the lines of a file, into a new file of the data folder, and returns its name."""
    monkeypatch.setenv("MARLAAS_ENV_DATA", str(tmp_path))
    datasets._data_folder.cache_clear()

    def write(*rows: dict[str, Any] | str | bytes) -> str:
        lines = [row if isinstance(row, str | bytes) else json.dumps(row, ensure_ascii=False) for row in rows]
        path = tmp_path / f"rows-{next(FILES)}.jsonl"  # files are cached by their names
        path.write_bytes(b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines))
        return path.name

    yield write
    datasets._data_folder.cache_clear()
