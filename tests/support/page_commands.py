"""Commands of a page of the docs, run as they are written."""

import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.services import without_settings


def commands(page: str, section: str) -> list[str]:
    """Lines of the blocks in the section that begins so, up to the next heading, without their comments."""
    text = re.split(r"\n##+ ", (ROOT / "docs" / page).read_text().partition(section)[2])[0]
    blocks = re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [line.partition(" # ")[0].strip() for block in blocks for line in block.splitlines()]


def run(command: str, folder: Path) -> str:
    """Output of a line of a page, in a shell, with the dates of today's month."""
    today = datetime.now(UTC).date()
    line = command.replace("2030-01-01", str(today - timedelta(days=1))).replace("2030-01-31", str(today + timedelta(days=1)))
    env = without_settings()
    env |= {"PATH": f"{Path(sys.executable).parent}:{env['PATH']}", "COLUMNS": "200", "HOME": str(folder)}
    found = subprocess.run(line, shell=True, cwd=folder, env=env, capture_output=True, text=True, timeout=500)
    assert found.returncode == 0, (line, found.stdout, found.stderr)
    assert "Traceback" not in found.stderr
    return found.stdout
