"""The `marlaas` command, run in the test's own process: its output and exit status.

Only for commands that return: those that exec another program (`os.execve`: doctor, psql, replay, `envs check`) need a process.
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
    """Run it in the folder `cwd`, from any thread, one at a time. Raises: exceptions that end the process with a traceback."""
    out, err = io.StringIO(), io.StringIO()
    logs = structlog.get_config() if structlog.is_configured() else None
    levels = {name: logging.getLogger(name).level for name in ("nats", "asyncio")}
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))  # keeps this process's other logs out of the output
    try:
        with chdir(cwd), redirect_stdout(out), redirect_stderr(err):
            status = cli.run(arguments)
    finally:
        structlog.reset_defaults()
        if logs is not None:
            structlog.configure(**logs)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
    return Done(status, out.getvalue(), err.getvalue())
