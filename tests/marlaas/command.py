"""The `marlaas` command, run in the test's own process: what it prints and its exit status.

For commands that return. Those that become another program (`os.execve`: doctor, psql, replay, `envs check`) need a process.
"""

import io
import logging
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import structlog

from marlaas import cli


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def marlaas(*arguments: str, cwd: Path) -> Done:
    """Run it in the folder `cwd`, from any thread, one at a time. Raises: what the process would end with a traceback of."""
    out, err = io.StringIO(), io.StringIO()
    logs, nats = structlog.get_config() if structlog.is_configured() else None, logging.getLogger("nats")
    level = nats.level
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))  # what the rest of this process logs stays apart
    try:
        with chdir(cwd), redirect_stdout(out), redirect_stderr(err):
            status = cli.run(arguments)
    finally:
        structlog.reset_defaults()
        if logs is not None:
            structlog.configure(**logs)
        nats.setLevel(level)
    return Done(status, out.getvalue(), err.getvalue())
