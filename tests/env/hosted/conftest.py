"""An interpreter with the tests' environments, and this machine's sandbox for hosts."""

import asyncio
import shutil
import sys
import venv
from pathlib import Path

import pytest

from env_svc.hosted.confinement import Confinement, NotConfined, find_confinement
from tests.env.hosted.playing import ROOT


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of a second virtual environment, with another version of a package that ours has too."""
    folder = tmp_path_factory.mktemp("guest") / "venv"
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    shutil.copy(Path(__file__).with_name("guest.py"), site)
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
