"""Runs the operator's commands on a server that wants keys: in the test's process, and where they are to be killed, in one of their own."""

import asyncio
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from marlaas.stack import control
from tests.support.keyed import Keyed
from tests.support.marlaas.command import Done, marlaas
from tests.support.paths import ROOT
from tests.support.services import without_settings

ARMED = "import sys; from common.resilience.crashpoints import arm; arm({!r}); from marlaas.cli.app import run; sys.exit(run(sys.argv[1:]))"


@dataclass(frozen=True)
class Operating:
    """A folder in which `marlaas` finds the deployment of `keyed`."""

    keyed: Keyed
    folder: Path

    @classmethod
    def of(cls, keyed: Keyed, folder: Path) -> "Operating":
        plan = control.make_plan(folder / "data", ROOT / "pools.toml", keys=keyed.keys.folder)
        (folder / "data").mkdir()
        (folder / "data" / "plan.json").write_text(plan.model_dump_json())
        return cls(keyed, folder)

    async def run(self, *arguments: str, crash: str = "") -> subprocess.CompletedProcess[str] | Done:
        """`crash`: point at which the command's process is killed."""
        own = {
            "MARLAAS_DATA_DIR": str(self.folder / "data"),
            "MARLAAS_NATS_URL": self.keyed.url,
            "MARLAAS_NATS_CREDS": str(self.keyed.keys.credentials("operator")),
        }
        if not crash:
            return await asyncio.to_thread(marlaas, *arguments, cwd=self.folder, env=own)
        env = without_settings() | own
        argv = [sys.executable, "-c", ARMED.format(f"{crash}:1"), *arguments]
        return await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=250, cwd=self.folder, env=env)

    async def done(self, *arguments: str) -> str:
        """Output of a command that must succeed."""
        found = await self.run(*arguments)
        assert (found.returncode, found.stderr) == (0, ""), (arguments, found)
        return found.stdout

    async def refused(self, *arguments: str) -> str:
        """The sentence with which a command ends."""
        found = await self.run(*arguments)
        assert found.returncode in (1, 2), (arguments, found)
        assert "Traceback" not in found.stderr
        return found.stderr
