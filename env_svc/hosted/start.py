"""Start of hosted processes: in a sandbox, or else with the rights of the service's user."""

import asyncio
import os
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, Process

import structlog

from env_svc.hosted.config import HostedConfig
from env_svc.hosted.confinement import Command, Confinement, NotConfined

INHERITED_VARIABLES = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR")
"""Environment variables that a host without a sandbox inherits. Others may contain passwords, and the service's HOME
token files."""
MAX_LINE_CHARS = 1_000
MAX_LINES = 200
"""Maximum printed lines of one process that are logged in a minute."""
CHUNK_BYTES = 4_096

log = structlog.get_logger()


class HostUnavailable(Exception):
    """The process could not be started, or ended before it answered."""


class HostFailed(HostUnavailable):
    """The process is not ready because of the code in it: it ended, reported that it cannot be played, or sent an invalid frame."""


class HostStarter:
    """Starts the processes of one host, one after the other."""

    def __init__(self, environment: str, hosted: HostedConfig, confinement: Confinement | None) -> None:
        """`confinement`: sandbox of its processes; None if this machine has no sandbox for hosts."""
        self._environment = environment
        self._hosted = hosted
        self._confinement = confinement if hosted.sandbox else None
        self._name = self._confinement.name_of_next() if self._confinement else ""
        self._home: tempfile.TemporaryDirectory[str] | None = None
        """HOME of its processes without a sandbox: empty at first, kept until the service ends."""

    async def start(self) -> Process:
        """A process that serves the environment over its pipes. Raises: HostUnavailable."""
        arguments = ("-m", "env_svc.hosted.host", *self._hosted.arguments)
        try:
            if self._confinement is None:
                command, errors = self._unconfined(arguments), None
            else:
                command = await self._confinement.command(self._name, self._hosted, *arguments)
                errors = PIPE if self._hosted.is_logged else DEVNULL
            process = await asyncio.create_subprocess_exec(
                *command.argv, stdin=PIPE, stdout=PIPE, stderr=errors, env=command.variables, process_group=0
            )
        except NotConfined as error:
            raise HostUnavailable(str(error)) from None
        except OSError as error:
            raise HostUnavailable(f"{self._hosted.python} cannot be run: {error.strerror}") from None
        return process

    async def log_prints(self, process: Process) -> None:
        """Log what a process in a sandbox prints, until it ends. Return immediately without a sandbox: it prints to the service's stderr.

        A sandboxed process must not have this stderr: it may be a terminal, or a file that others read as the service's log.
        """
        if process.stderr is None:
            return
        printed = PrintedLines()
        while data := await process.stderr.read(CHUNK_BYTES):
            for line in printed.add(data.decode(errors="replace"), time.monotonic()):
                log.info("host_printed", environment=self._environment, process=process.pid, text=line)

    async def end(self) -> None:
        """Remove what its processes leave behind."""
        if self._home is not None:
            await asyncio.to_thread(self._home.cleanup)
        if self._confinement is not None:
            await self._confinement.release(self._name)

    def _unconfined(self, arguments: tuple[str, ...]) -> Command:
        if self._home is None:
            self._home = tempfile.TemporaryDirectory(prefix="marlaas-host-", ignore_cleanup_errors=True)
        inherited = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
        return Command([self._hosted.python, *arguments], inherited | {"HOME": self._home.name} | self._hosted.variables)


class PrintedLines:
    """Lines of a stream of text, at most `MAX_LINES` a minute, each of at most `MAX_LINE_CHARS`. Pure."""

    def __init__(self) -> None:
        self._rest = ""
        self._minute = 0
        self._count = 0

    def add(self, text: str, now_s: float) -> list[str]:
        """Lines to log now. Longer lines are cut. Lines beyond the number are dropped, and one line says so."""
        if int(now_s // 60) != self._minute:
            self._minute, self._count = int(now_s // 60), 0
        *lines, rest = (self._rest + text).split("\n")
        self._rest = rest[:MAX_LINE_CHARS]
        kept: list[str] = []
        for line in lines:
            self._count += 1
            if self._count <= MAX_LINES:
                kept.append(line[:MAX_LINE_CHARS])
            elif self._count == MAX_LINES + 1:
                kept.append(f"… more than {MAX_LINES} lines in a minute; the others are not logged")
        return kept
