"""A tenant's own environment through the whole stack: the commands of docs/environments.md, as they are written."""

import re
from pathlib import Path

import pytest

from marlaas.stack import control
from tests.support.page_commands import commands, run
from tests.support.paths import ROOT

SHOWS = {
    "envs upload": r"own:letter_count",
    "submit": r"letter-count-1",
    "watch": r"finished",
    "envs list": r"letter-count +1\.0 +[0-9a-f]{12} +usable",
    "envs delete": r"is deleted",
}
"""Beginning of a command → what it must show."""


@pytest.mark.acceptance
@pytest.mark.timeout(600)
def test_a_package_is_uploaded_and_trained_on(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    page = commands("environments.md", "## Packages of tenants")
    try:
        run("marlaas up", tmp_path)
        for command in page:
            shown = run(command, tmp_path)
            [expected] = [pattern for begin, pattern in SHOWS.items() if command.startswith(f"marlaas {begin}")]
            assert re.search(expected, shown), (command, shown)
    finally:
        control.stop(tmp_path / ".marlaas")
    assert len(page) == len(SHOWS)
