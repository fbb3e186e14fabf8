"""The `marlaas` command, run in the test's own process: its output and exit status.

Only for commands that return: those that exec another program (`os.execve`: doctor, psql, replay, `envs check`) need a process.
"""

import io
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import structlog

from marlaas import cli
from tests.support.services import without_settings

_one_at_a_time = threading.Lock()
"""Folder, variables, standard output and logs are the process's."""


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def marlaas(*arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> Done:
    """Run it in the folder `cwd`, from any thread, one at a time; `env`: the only settings that it has, otherwise those of the tests.

    Raises: exceptions that end the process with a traceback.
    """
    out, err = io.StringIO(), io.StringIO()
    with _one_at_a_time:
        logs = structlog.get_config() if structlog.is_configured() else None
        levels = {name: logging.getLogger(name).level for name in ("nats", "asyncio")}
        structlog.configure(
            logger_factory=structlog.PrintLoggerFactory(sys.__stderr__)
        )  # keeps this process's other logs out of the output
        variables = os.environ if env is None else without_settings() | env
        try:
            with patch.dict(os.environ, variables, clear=True), chdir(cwd), redirect_stdout(out), redirect_stderr(err):
                status = cli.run(arguments)
        finally:
            structlog.reset_defaults()
            if logs is not None:
                structlog.configure(**logs)
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
    return Done(status, out.getvalue(), err.getvalue())


MARLAAS = str(Path(sys.executable).parent / "marlaas")


def complaint(done: subprocess.CompletedProcess[str] | Done) -> str:
    """Its error: one line, no traceback, exit status 1."""
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr
